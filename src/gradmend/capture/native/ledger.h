/* The ledger's inner loops: layouts, Saves entered into timelines, and plain Writes. */

#ifndef GRADMEND_LEDGER_H
#define GRADMEND_LEDGER_H

#include "fields.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

/* lock.c */
typedef struct {
    PyObject_HEAD
    PyThread_type_lock lock;
    unsigned long owner;
    long depth;
} Lock;
extern PyTypeObject LockType;
int lock_take(Lock *lock, int wait); /* 0 where it would have to wait and may not */
void lock_release(Lock *lock);

/* grid.c */
#define MOST_DIMS 16
typedef struct {
    long long offset, item; /* in elements; bytes of one */
    PyObject *dtype;        /* borrowed: torch keeps its dtypes for ever */
    const char *memory;     /* where its storage begins, if that is known and can be read */
    int dims;
    long long sizes[MOST_DIMS], steps[MOST_DIMS];
} Grid;
int grid_of(PyObject *tensor, Grid *grid); /* 1; 0 where Python must look; -1 on an error */
int grid_at(Grid *grid, PyObject *key);
void bounds(const Grid *grid, long long *lo, long long *hi, int *dense);
PyObject *know_grids(PyObject *module, PyObject *args);

/* layout.c */
typedef struct {
    PyObject_VAR_HEAD
    Py_hash_t hash;
    long long lo, hi, offset;
    PyObject *dtype;
    char dense;
    long long numbers[]; /* its sizes, then its strides */
} Layout;
extern PyTypeObject *LayoutType;
PyObject *layout_from(const Grid *grid);
int same_layout(PyObject *one, PyObject *other);
PyObject *layout_of(PyObject *module, PyObject *tensor);
PyObject *know_layouts(PyObject *module, PyObject *args);
int layouts_ready(PyObject *module);

/* roll.c */
void roll_add(Roll *roll, Entry *entry);
void roll_leave(Entry *entry);
Entry *roll_first(Roll *roll);
static inline Py_ssize_t
on_roll(PyObject *roll)
{
    return ((Roll *)roll)->n;
}

/* counters.c */
int version_at(PyObject *tensor, long long *version);
Counter *counter_of(Timeline *timeline, Entry *entry);
int uncredited(Entry *entry, long long now); /* the counter, which stands there, stepped outside every Write we saw */
PyObject *know_counters(PyObject *module, PyObject *args);

/* index.c */
int index_ready(void);
int index_add(LayoutIndex *index, PyObject *layout);
int index_remove(LayoutIndex *index, PyObject *layout);

/* timeline.c */
void ledger_lock(Ledger *ledger);
void ledger_unlock(Ledger *ledger);
int ledger_settle(Ledger *ledger); /* under the lock */
int ledger_bury(Ledger *ledger);
int timeline_settle(Timeline *timeline);
Py_ssize_t living(Timeline *timeline);
int close_timeline(Ledger *ledger, Timeline *timeline);
int entry_died(Entry *entry);
long long tick_of(Ledger *ledger);
PyObject *tick(PyObject *module, PyObject *ledger);
PyObject *settle(PyObject *module, PyObject *ledger);
PyObject *settle_timeline(PyObject *module, PyObject *timeline);
PyObject *bury(PyObject *module, PyObject *ledger);
PyObject *know_timelines(PyObject *module, PyObject *args);

/* writes.c */
#define MOST_COUNTERS 8
typedef struct {
    Timeline *timeline; /* NULL where nobody needs to know */
    Written *written;
    int counters;
    long long before[MOST_COUNTERS]; /* where they stood */
} Begun;
/* A plain Write of all of `tensor`, or of what `key` picks. 1: begun; 0: Python must do it; -1: an error. */
int write_begins(Ledger *ledger, Begun *begun, PyObject *op, PyObject *tensor, PyObject *key);
int write_ended(Ledger *ledger, Begun *begun);
int writes_ready(void);
PyObject *know_writes(PyObject *module, PyObject *args);

/* scratch.c */
PyObject *scratch_like(PyObject *handle, Layout *layout, char **memory); /* a tensor whose bytes are nobody's yet */
PyObject *know_scratch(PyObject *module, PyObject *args);

/* values.c */
/* Of a Save whose counter stands at `now`; NULL without an error where Python must judge. */
PyObject *known_value(Entry *entry, long long now);
PyObject *exact_value(PyObject *module, PyObject *saved);
PyObject *same_bytes(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *know_values(PyObject *module, PyObject *args);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
