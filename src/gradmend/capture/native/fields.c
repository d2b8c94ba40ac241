/* The types of fields.h: attributes to Python, plain struct members here. */

#include "fields.h"

#include <stddef.h>
#include <structmember.h>

#include "ledger.h"

static PyObject *no_swaps;

/* Every type's objects lie side by side, from the first to the last. */
static void
let_go(PyObject *self, PyObject *weakrefs, PyObject **first, PyObject **last)
{
    if (weakrefs != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    for (; first <= last; first++) {
        Py_CLEAR(*first);
    }
    Py_TYPE(self)->tp_free(self);
}

#define FREE(T, first, last)                                                                                           \
    static void T##_dealloc(T *self) { let_go((PyObject *)self, self->weakrefs, &self->first, &self->last); }

#define OBJECT(T, name) {#name, T_OBJECT, offsetof(T, name), 0, NULL}
#define NUMBER(T, name) {#name, T_LONGLONG, offsetof(T, name), 0, NULL}
#define PRIVATE(T, kind, name) {"_" #name, kind, offsetof(T, name), 0, NULL}

#define TYPE(T)                                                                                                        \
    PyTypeObject T##Type = {                                                                                           \
        PyVarObject_HEAD_INIT(NULL, 0)                                                                                 \
        .tp_name = "gradmend.capture._fast." #T,                                                                       \
        .tp_basicsize = sizeof(T),                                                                                     \
        .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,                                                          \
        .tp_new = T##_new,                                                                                             \
        .tp_dealloc = (destructor)T##_dealloc,                                                                         \
        .tp_members = T##_members,                                                                                     \
        .tp_weaklistoffset = offsetof(T, weakrefs),                                                                    \
    }

/* A class made in Python is one whose instances are tracked, whatever it derives from. */
PyObject *
untracked(PyTypeObject *type)
{
    PyObject *made = type->tp_alloc(type, 0);
    if (made != NULL && PyObject_IS_GC(made)) {
        PyObject_GC_UnTrack(made);
    }
    return made;
}

static PyObject *
empty(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    return untracked(type);
}

#define Ledger_new empty
#define Timeline_new empty
#define Written_new empty
#define Counter_new empty
#define Record_new empty
#define UndoLog_new empty
#define LayoutIndex_new empty

static PyObject *
Entry_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Entry *entry = (Entry *)untracked(type);
    if (entry != NULL) {
        entry->swaps = Py_NewRef(no_swaps);
    }
    return (PyObject *)entry;
}

/* The graph let go of a Save: what only it needed can go. */
static void
Entry_dealloc(Entry *self)
{
    roll_leave(self);
    if (!missing(self->timeline)) {
        PyObject *kind, *error, *trace;
        PyErr_Fetch(&kind, &error, &trace);
        if (entry_died(self) < 0) {
            PyErr_WriteUnraisable(NULL);
        }
        PyErr_Restore(kind, error, trace);
    }
    let_go((PyObject *)self, self->weakrefs, &self->handle, &self->counter);
}

FREE(Ledger, timelines, lock)
FREE(Timeline, ledger, undo)
FREE(Written, op, how)
FREE(Counter, carrier, base)
FREE(Record, written, elements)
FREE(UndoLog, records, shadow)
FREE(LayoutIndex, counts, classes)

static PyMemberDef Ledger_members[] = {
    OBJECT(Ledger, timelines), OBJECT(Ledger, fresh), OBJECT(Ledger, awake), OBJECT(Ledger, dead),
    OBJECT(Ledger, clock), NUMBER(Ledger, budgets), PRIVATE(Ledger, T_OBJECT, lock),
    PRIVATE(Ledger, T_LONGLONG, busy), {NULL},
};
static PyMemberDef Timeline_members[] = {
    OBJECT(Timeline, ledger), OBJECT(Timeline, counters), OBJECT(Timeline, fresh), OBJECT(Timeline, gone),
    OBJECT(Timeline, index), OBJECT(Timeline, live), OBJECT(Timeline, log), OBJECT(Timeline, undo),
    NUMBER(Timeline, key), NUMBER(Timeline, last), NUMBER(Timeline, newest), NUMBER(Timeline, deaths), {NULL},
};
static PyMemberDef Entry_members[] = {
    OBJECT(Entry, handle), OBJECT(Entry, raw), OBJECT(Entry, scope), OBJECT(Entry, original), OBJECT(Entry, timeline),
    OBJECT(Entry, layout), OBJECT(Entry, swaps), OBJECT(Entry, print), OBJECT(Entry, escape), OBJECT(Entry, counter),
    NUMBER(Entry, version), NUMBER(Entry, tick), NUMBER(Entry, standing), NUMBER(Entry, unchecked), {NULL},
};
static PyMemberDef Written_members[] = {
    OBJECT(Written, op), OBJECT(Written, raw), OBJECT(Written, layout), OBJECT(Written, how), NUMBER(Written, tick),
    NUMBER(Written, moved), NUMBER(Written, kept), {NULL},
};
static PyMemberDef Counter_members[] = {
    OBJECT(Counter, carrier), OBJECT(Counter, base), NUMBER(Counter, credited), NUMBER(Counter, seen), {NULL},
};
static PyMemberDef Record_members[] = {
    OBJECT(Record, written), OBJECT(Record, layout), OBJECT(Record, old), OBJECT(Record, elements),
    NUMBER(Record, tick), NUMBER(Record, nbytes), {NULL},
};
static PyMemberDef UndoLog_members[] = {
    OBJECT(UndoLog, records), NUMBER(UndoLog, nbytes), PRIVATE(UndoLog, T_OBJECT, series),
    PRIVATE(UndoLog, T_OBJECT, index), PRIVATE(UndoLog, T_OBJECT, shadow), PRIVATE(UndoLog, T_LONGLONG, indexed), {NULL},
};
static PyMemberDef LayoutIndex_members[] = {
    PRIVATE(LayoutIndex, T_OBJECT, counts), PRIVATE(LayoutIndex, T_OBJECT, unsorted),
    PRIVATE(LayoutIndex, T_OBJECT, gone), PRIVATE(LayoutIndex, T_OBJECT, classes), NUMBER(LayoutIndex, lo),
    NUMBER(LayoutIndex, hi), {NULL},
};

TYPE(Ledger);
TYPE(Timeline);
TYPE(Entry);
TYPE(Written);
TYPE(Counter);
TYPE(Record);
TYPE(UndoLog);
TYPE(LayoutIndex);

int
fields_ready(PyObject *module)
{
    if ((no_swaps = PyTuple_New(0)) == NULL) {
        return -1;
    }
    PyTypeObject *types[] = {&LedgerType,  &TimelineType, &EntryType,   &WrittenType,
                             &CounterType, &RecordType,   &UndoLogType, &LayoutIndexType, &RollType};
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        if (PyModule_AddType(module, types[i]) < 0) {
            return -1;
        }
    }
    return 0;
}
