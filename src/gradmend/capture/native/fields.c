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
    PyTypeObject *type = Py_TYPE(self);
    if (weakrefs != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    for (; first <= last; first++) {
        Py_CLEAR(*first);
    }
    type->tp_free(self);
    Py_DECREF(type);
}

#define FREE(T, first, last)                                                                                           \
    static void T##_dealloc(T *self) { let_go((PyObject *)self, self->weakrefs, &self->first, &self->last); }

#define OBJECT(T, name) {#name, T_OBJECT, offsetof(T, name), 0, NULL}
#define NUMBER(T, name) {#name, T_LONGLONG, offsetof(T, name), 0, NULL}
#define PRIVATE(T, kind, name) {"_" #name, kind, offsetof(T, name), 0, NULL}

/* Heap types, which take methods from classes in Python: see grafted() in fields.py. */
#define TYPE(T)                                                                                                        \
    PyTypeObject *T##Type;                                                                                             \
    static PyType_Slot T##_slots[] = {                                                                                 \
        {Py_tp_new, T##_new}, {Py_tp_dealloc, T##_dealloc}, {Py_tp_members, T##_members}, {0, NULL},                   \
    };                                                                                                                 \
    static PyType_Spec T##_spec = {                                                                                    \
        .name = "gradmend.capture._fast." #T,                                                                          \
        .basicsize = sizeof(T),                                                                                        \
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,                                                             \
        .slots = T##_slots,                                                                                            \
    }
#define WEAKLY(T) {"__weaklistoffset__", T_PYSSIZET, offsetof(T, weakrefs), READONLY, NULL}, {NULL}

/* A class made in Python is one whose instances are tracked, whatever it derives from: the rarer kinds of Save are. */
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
#define Edits_new empty

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
FREE(Edits, aliases, leaf_writes)

static PyMemberDef Ledger_members[] = {
    OBJECT(Ledger, timelines), OBJECT(Ledger, fresh), OBJECT(Ledger, awake), OBJECT(Ledger, dead),
    NUMBER(Ledger, budgets), PRIVATE(Ledger, T_OBJECT, lock),
    PRIVATE(Ledger, T_LONGLONG, busy), WEAKLY(Ledger),
};
static PyMemberDef Timeline_members[] = {
    OBJECT(Timeline, ledger), OBJECT(Timeline, counters), OBJECT(Timeline, fresh), OBJECT(Timeline, gone),
    OBJECT(Timeline, index), OBJECT(Timeline, live), OBJECT(Timeline, log), OBJECT(Timeline, undo),
    NUMBER(Timeline, key), NUMBER(Timeline, last), NUMBER(Timeline, newest), NUMBER(Timeline, deaths), WEAKLY(Timeline),
};
static PyMemberDef Entry_members[] = {
    OBJECT(Entry, handle), OBJECT(Entry, raw), OBJECT(Entry, scope), OBJECT(Entry, original), OBJECT(Entry, timeline),
    OBJECT(Entry, layout), OBJECT(Entry, swaps), OBJECT(Entry, print), OBJECT(Entry, escape), OBJECT(Entry, counter),
    NUMBER(Entry, version), NUMBER(Entry, tick), NUMBER(Entry, standing), NUMBER(Entry, unchecked), NUMBER(Entry, number),
    WEAKLY(Entry),
};
static PyMemberDef Written_members[] = {
    OBJECT(Written, op), OBJECT(Written, raw), OBJECT(Written, layout), OBJECT(Written, how), NUMBER(Written, tick),
    NUMBER(Written, moved), NUMBER(Written, kept), WEAKLY(Written),
};
static PyMemberDef Counter_members[] = {
    OBJECT(Counter, carrier), OBJECT(Counter, base), NUMBER(Counter, credited), NUMBER(Counter, seen), WEAKLY(Counter),
};
static PyMemberDef Record_members[] = {
    OBJECT(Record, written), OBJECT(Record, layout), OBJECT(Record, old), OBJECT(Record, elements),
    NUMBER(Record, tick), NUMBER(Record, nbytes), WEAKLY(Record),
};
static PyMemberDef UndoLog_members[] = {
    OBJECT(UndoLog, records), NUMBER(UndoLog, nbytes), PRIVATE(UndoLog, T_OBJECT, series),
    PRIVATE(UndoLog, T_OBJECT, index), PRIVATE(UndoLog, T_OBJECT, shadow), PRIVATE(UndoLog, T_LONGLONG, filed),
    PRIVATE(UndoLog, T_LONGLONG, indexed), WEAKLY(UndoLog),
};
static PyMemberDef LayoutIndex_members[] = {
    PRIVATE(LayoutIndex, T_OBJECT, counts), PRIVATE(LayoutIndex, T_OBJECT, unsorted),
    PRIVATE(LayoutIndex, T_OBJECT, gone), PRIVATE(LayoutIndex, T_OBJECT, classes), NUMBER(LayoutIndex, lo),
    NUMBER(LayoutIndex, hi), WEAKLY(LayoutIndex),
};
static PyMemberDef Edits_members[] = {
    OBJECT(Edits, aliases), OBJECT(Edits, pending), OBJECT(Edits, handed), OBJECT(Edits, inputs),
    OBJECT(Edits, leaf_writes), NUMBER(Edits, on), WEAKLY(Edits),
};

TYPE(Ledger);
TYPE(Timeline);
TYPE(Entry);
TYPE(Written);
TYPE(Counter);
TYPE(Record);
TYPE(UndoLog);
TYPE(LayoutIndex);
TYPE(Edits);

int
fields_ready(PyObject *module)
{
    if ((no_swaps = PyTuple_New(0)) == NULL) {
        return -1;
    }
    struct {
        PyTypeObject **type;
        PyType_Spec *spec;
    } types[] = {
        {&LedgerType, &Ledger_spec},   {&TimelineType, &Timeline_spec}, {&EntryType, &Entry_spec},
        {&WrittenType, &Written_spec}, {&CounterType, &Counter_spec},   {&RecordType, &Record_spec},
        {&UndoLogType, &UndoLog_spec}, {&LayoutIndexType, &LayoutIndex_spec},
        {&EditsType, &Edits_spec},
    };
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        if ((*types[i].type = (PyTypeObject *)PyType_FromSpec(types[i].spec)) == NULL
            || PyModule_AddType(module, *types[i].type) < 0)
        {
            return -1;
        }
    }
    if (PyModule_AddType(module, &RollType) < 0) {
        return -1;
    }
    return 0;
}
