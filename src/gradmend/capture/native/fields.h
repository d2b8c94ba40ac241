/* What the ledger's entries hold. fields.py has the same in Python, from where their methods come too.

   The garbage collector does not know them: they hold numbers, tensors without a graph, scopes and each other, and
   nothing of these leads back to who holds them. A loop makes thousands, and each would bring the next collection
   of all of torch's objects nearer. */

#ifndef GRADMEND_FIELDS_H
#define GRADMEND_FIELDS_H

#include "native.h"

#define HEAD PyObject_HEAD PyObject *weakrefs;

/* In each, objects come first: a missing one reads as None. */

typedef struct {
    HEAD
    PyObject *timelines, *fresh, *awake, *dead, *lock;
    long long ticks, busy, budgets;
} Ledger;

typedef struct {
    HEAD
    PyObject *ledger, *counters, *fresh, *gone, *index, *live, *log, *undo;
    long long key, last, newest, deaths;
} Timeline;

typedef struct Entry {
    HEAD
    PyObject *handle, *raw, *scope, *original, *timeline, *layout, *swaps, *print, *escape, *counter;
    long long version, tick, standing, unchecked, number;
    struct Roll *roll; /* the one it is on, and its neighbours there */
    struct Entry *before, *after;
} Entry;

/* Living Saves, in the order they came; the dead drop out by themselves. */
typedef struct Roll {
    HEAD
    Entry *first, *last;
    Py_ssize_t n;
} Roll;

typedef struct {
    HEAD
    PyObject *op, *raw, *layout, *how;
    long long tick, moved, kept;
} Written;

typedef struct {
    HEAD
    PyObject *carrier, *base;
    long long credited, seen;
} Counter;

typedef struct {
    HEAD
    PyObject *written, *layout, *old, *elements;
    long long tick, nbytes;
} Record;

typedef struct {
    HEAD
    PyObject *records, *series, *index, *shadow;
    long long nbytes, filed, indexed;
} UndoLog;

typedef struct {
    HEAD
    PyObject *counts, *unsorted, *gone, *classes;
    long long lo, hi;
} LayoutIndex;

typedef struct {
    HEAD
    PyObject *aliases, *pending, *handed, *inputs, *leaf_writes;
    long long on;
} Edits;

PyObject *untracked(PyTypeObject *type); /* a new one, with nothing in it */

extern PyTypeObject *LedgerType, *TimelineType, *EntryType, *WrittenType, *CounterType, *RecordType, *UndoLogType,
    *LayoutIndexType, *EditsType, RollType;

/* Whom a weak reference leads to, as a new reference; NULL when it is gone, or there is none. */
static inline PyObject *
alive(PyObject *ref)
{
    PyObject *found = NULL;
    if (ref != NULL && PyWeakref_Check(ref)) {
#if PY_VERSION_HEX >= 0x030D0000
        if (PyWeakref_GetRef(ref, &found) < 0) {
            PyErr_Clear();
        }
#else
        found = PyWeakref_GET_OBJECT(ref);
        found = found == Py_None ? NULL : Py_NewRef(found);
#endif
    }
    return found;
}

static inline int
missing(PyObject *field)
{
    return field == NULL || field == Py_None;
}

#endif
