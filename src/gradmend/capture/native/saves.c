/* The saved-tensor hooks for the plainest Saves: saves.py and Ledger.save() and ask() have the same in Python, and are
   asked for everything else. */

#include "ledger.h"

#define MOST_NODES 4096 /* as backwards.py */

static PyTypeObject *EntryClass = NULL, *Tensor = NULL;
static Ledger *ledger;
/* What Python hands over once. */
static PyObject *local, *asleep, *handed_out, *running, *detach, *next_number, *slow_pack, *slow_unpack, *visit;
/* Names. */
static PyObject *scopes, *paranoid, *saves, *look, *ask;

/* The innermost scope of this thread, borrowed; NULL where Python must look. */
static PyObject *
innermost(void)
{
    if (EntryClass == NULL || PySet_GET_SIZE(asleep)) {
        return NULL;
    }
    static PyObject *open; /* the list of the thread that asked last, which is its own for as long as it lives */
    static uint64_t thread;
    uint64_t me = PyThreadState_GetID(PyThreadState_Get());
    if (open == NULL || thread != me) {
        PyObject *found = PyObject_GetAttr(local, scopes);
        if (found == NULL || !PyList_CheckExact(found)) {
            PyErr_Clear();
            Py_XDECREF(found);
            return NULL;
        }
        Py_XSETREF(open, found);
        thread = me;
    }
    Py_ssize_t n = PyList_GET_SIZE(open);
    return n ? PyList_GET_ITEM(open, n - 1) : NULL;
}

/* Whether its bytes must be remembered: memory that others may hold too, or a scope that trusts nobody. */
static int
suspicious(PyObject *storage, PyObject *scope)
{
    int own = is_its_own(storage);
    if (own <= 0) {
        return own < 0 ? -1 : 1;
    }
    int wary = truth(PyObject_GetAttr(scope, paranoid));
    return wary ? wary : PySet_GET_SIZE(handed_out) > 0;
}

PyObject *
pack(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    PyObject *scope = innermost(), *storage = NULL;
    if (scope == NULL || !is_plain(tensor)) {
        return PyObject_CallOneArg(slow_pack, tensor);
    }
    Entry *entry = (Entry *)EntryClass->tp_new(EntryClass, NULL, NULL);
    if (entry == NULL) {
        return NULL;
    }
    entry->scope = Py_NewRef(scope);
    entry->tick = tick_of(ledger);
    long long next;
    if (number(PyObject_CallNoArgs(next_number), &next) < 0
        || (entry->handle = PyObject_CallOneArg(detach, tensor)) == NULL || version_at(tensor, &entry->version) < 0
        || (entry->raw = walk(1)) == NULL
        || (entry->original = PyWeakref_NewRef(tensor, NULL)) == NULL)
    {
        goto error;
    }
    entry->number = next - 1; /* the newest node: the one that saves, see backwards.py */
    /* Neither leads back to anybody: a plain tensor without a graph, and a reference without a callback. */
    if (Py_IS_TYPE(entry->handle, Tensor)) {
        PyObject_GC_UnTrack(entry->handle);
    }
    PyObject_GC_UnTrack(entry->original);
    storage = storage_of(tensor);
    int closer = storage == NULL ? -1 : suspicious(storage, scope);
    if (closer < 0) {
        /* Sparse, wrapped: Python knows what that means. (A NotImplementedError is a RuntimeError.) */
        if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) {
            goto error;
        }
        PyErr_Clear();
        Py_XDECREF(storage);
        Py_DECREF(entry);
        return PyObject_CallOneArg(slow_pack, tensor);
    }
    roll_add((Roll *)ledger->fresh, entry);
    if (PySet_Add(ledger->awake, saves) < 0) {
        goto error;
    }
    if (closer) {
        PyObject *none = PyObject_CallMethodObjArgs((PyObject *)ledger, look, entry, storage, NULL);
        if (none == NULL) {
            goto error;
        }
        Py_DECREF(none);
    }
    Py_DECREF(storage);
    return (PyObject *)entry;
error:
    Py_XDECREF(storage);
    Py_DECREF(entry);
    return NULL;
}

/* backwards.visit() while one backward runs: a node asked for a Save of this line. */
static int
note_visit(Entry *entry)
{
    Py_ssize_t calls = PyList_GET_SIZE(running);
    Call *call = calls ? (Call *)PyList_GET_ITEM(running, 0) : NULL;
    if (call == NULL || (calls == 1 && call->retain)) {
        return 0;
    }
    PyObject *nodes = calls > 1 ? NULL : nodes_of(call);
    if (calls == 1 && (nodes == NULL || PyDict_GET_SIZE(nodes) >= MOST_NODES)) {
        return nodes == NULL ? -1 : 0;
    }
    int done = -1;
    PyObject *nth = PyLong_FromLongLong(entry->number);
    if (nth != NULL && calls == 1) {
        done = PyDict_SetItem(nodes, nth, entry->raw);
    }
    else if (nth != NULL) {
        PyObject *none = PyObject_CallFunctionObjArgs(visit, nth, entry->raw, NULL);
        Py_XDECREF(none);
        done = none == NULL ? -1 : 0;
    }
    Py_XDECREF(nth);
    return done;
}

/* Whether nothing has happened to the Save: then its handle is what backward gets. */
static int
untouched(Entry *entry, long long now)
{
    return now == entry->version && missing(entry->print) && PyTuple_GET_SIZE(entry->swaps) == 0
           && (missing(entry->timeline) || ((Timeline *)entry->timeline)->last < entry->tick);
}

PyObject *
unpack(PyObject *Py_UNUSED(module), PyObject *packed)
{
    if (!Py_IS_TYPE(packed, EntryClass)) {
        return PyObject_CallOneArg(slow_unpack, packed);
    }
    Entry *entry = (Entry *)packed;
    long long now;
    if (note_visit(entry) < 0 || version_at(entry->handle, &now) < 0) {
        return NULL;
    }
    if (untouched(entry, now)) {
        return Py_NewRef(entry->handle);
    }
    PyObject *value = known_value(entry, now);
    if (value != NULL || PyErr_Occurred()) {
        return value;
    }
    return PyObject_CallMethodOneArg((PyObject *)ledger, ask, packed);
}

PyObject *
know_saves(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *kind, *plain, *entries, *given[9];
    PyObject **kept[9] = {&local,  &asleep,       &handed_out,   &running,    &detach,
                          &next_number, &slow_pack, &slow_unpack, &visit};
    if (!PyArg_ParseTuple(args, "O!O!O!OO!OO!OOOOO", &PyType_Type, &kind, &PyType_Type, &plain, LedgerType,
                          &entries, given, &PySet_Type, given + 1, given + 2, &PyList_Type, given + 3, given + 4,
                          given + 5, given + 6, given + 7, given + 8))
    {
        return NULL;
    }
    for (int i = 0; i < 9; i++) {
        Py_XSETREF(*kept[i], Py_NewRef(given[i]));
    }
    Py_XSETREF(Tensor, (PyTypeObject *)Py_NewRef(plain));
    Py_XSETREF(ledger, (Ledger *)Py_NewRef(entries));
    Py_XSETREF(EntryClass, (PyTypeObject *)Py_NewRef(kind));
    Py_RETURN_NONE;
}

int
saves_ready(void)
{
    Name names[] = {
        {&scopes, "scopes"}, {&paranoid, "paranoid"}, {&saves, "saves"},     {&look, "look"},
        {&ask, "ask"},
    };
    return INTERN(names);
}
