/* The saved-tensor hooks for the plainest Saves: saves.py and Ledger.save() and ask() have the same in Python, and are
   asked for everything else. */

#include "native.h"

#define MOST_NODES 4096 /* as backwards.py */

static PyTypeObject *Entry = NULL;
/* What Python hands over once. */
static PyObject *ledger, *local, *asleep, *escapes, *running, *detach, *storage_of, *current_node;
static PyObject *slow_pack, *slow_unpack, *visit;
/* Of the ledger's own, which it keeps for its life. */
static PyObject *fresh, *awake, *ticks;
/* Names. */
static PyObject *handle, *version, *tick, *raw, *scope, *original, *timeline, *last, *fingerprint, *swaps, *scopes,
    *retain, *visited, *sequence_nr, *resizable, *paranoid, *saves, *append, *many, *thin, *look, *known, *ask;

static int
fill(PyObject *entry, PyObject *name, PyObject *value)
{
    if (value == NULL) {
        return -1;
    }
    int failed = PyObject_SetAttr(entry, name, value);
    Py_DECREF(value);
    return failed;
}

/* The innermost scope of this thread, borrowed; NULL where Python must look. */
static PyObject *
innermost(void)
{
    if (Entry == NULL || PySet_GET_SIZE(asleep)) {
        return NULL;
    }
    PyObject *open = PyObject_GetAttr(local, scopes);
    if (open == NULL) {
        PyErr_Clear();
        return NULL;
    }
    Py_ssize_t n = PyList_CheckExact(open) ? PyList_GET_SIZE(open) : 0;
    PyObject *found = n ? PyList_GET_ITEM(open, n - 1) : NULL;
    Py_DECREF(open); /* the thread's own list holds it */
    return found;
}

static int
is_true(PyObject *owner, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(owner, name);
    if (value == NULL) {
        return -1;
    }
    int found = PyObject_IsTrue(value);
    Py_DECREF(value);
    return found;
}

/* Whether its bytes must be remembered: memory that others may hold too, or a scope that trusts nobody. */
static int
suspicious(PyObject *storage, PyObject *of)
{
    PyObject *can = PyObject_CallMethodNoArgs(storage, resizable);
    if (can == NULL) {
        return -1;
    }
    Py_DECREF(can);
    if (can != Py_True) {
        return 1;
    }
    int wary = is_true(of, paranoid);
    return wary ? wary : is_true(escapes, known);
}

static int
enter(PyObject *entry)
{
    PyObject *ref = PyWeakref_NewRef(entry, NULL);
    PyObject *none = ref == NULL ? NULL : PyObject_CallMethodOneArg(fresh, append, ref);
    Py_XDECREF(ref);
    if (none == NULL) {
        return -1;
    }
    Py_DECREF(none);
    if (PySet_Add(awake, saves) < 0) {
        return -1;
    }
    PyObject *most = PyObject_GetAttr(ledger, many);
    Py_ssize_t bound = most == NULL ? -1 : PyLong_AsSsize_t(most);
    Py_XDECREF(most);
    if (bound < 0) {
        return -1;
    }
    if (PyObject_Size(fresh) > bound) {
        none = PyObject_CallMethodNoArgs(ledger, thin);
        Py_XDECREF(none);
        return none == NULL ? -1 : 0;
    }
    return 0;
}

PyObject *
pack(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    PyObject *of = innermost();
    if (of == NULL) {
        return PyObject_CallOneArg(slow_pack, tensor);
    }
    PyObject *entry = PyType_GenericNew(Entry, NULL, NULL), *storage = NULL;
    if (entry == NULL) {
        return NULL;
    }
    if (fill(entry, handle, PyObject_CallOneArg(detach, tensor)) || fill(entry, version, version_of(tensor))
        || fill(entry, tick, PyIter_Next(ticks)) || fill(entry, raw, walk(1)) || fill(entry, scope, Py_NewRef(of))
        || fill(entry, original, PyWeakref_NewRef(tensor, NULL)))
    {
        goto error;
    }
    storage = PyObject_CallOneArg(storage_of, tensor);
    int closer = storage == NULL ? -1 : suspicious(storage, of);
    if (closer < 0) {
        /* Sparse, wrapped: PyTorch's counter is all there is to go by. (A NotImplementedError is a RuntimeError.) */
        if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) {
            goto error;
        }
        PyErr_Clear();
        Py_XDECREF(storage);
        return entry;
    }
    if (enter(entry) < 0) {
        goto error;
    }
    if (closer) {
        PyObject *none = PyObject_CallMethodObjArgs(ledger, look, entry, storage, NULL);
        if (none == NULL) {
            goto error;
        }
        Py_DECREF(none);
    }
    Py_DECREF(storage);
    return entry;
error:
    Py_XDECREF(storage);
    Py_DECREF(entry);
    return NULL;
}

/* backwards.visit() while one backward runs: the node asked for a Save of this line. */
static int
note_visit(PyObject *entry)
{
    PyObject *node = PyObject_CallNoArgs(current_node);
    if (node == NULL) {
        return -1;
    }
    int done = 0;
    PyObject *from = NULL, *nodes = NULL, *number = NULL;
    if (node == Py_None || PyList_GET_SIZE(running) == 0) {
        goto end;
    }
    done = -1;
    if ((from = PyObject_GetAttr(entry, raw)) == NULL) {
        goto end;
    }
    if (PyList_GET_SIZE(running) > 1) {
        PyObject *none = PyObject_CallFunctionObjArgs(visit, node, from, NULL);
        Py_XDECREF(none);
        done = none == NULL ? -1 : 0;
        goto end;
    }
    PyObject *call = PyList_GET_ITEM(running, 0);
    int kept = is_true(call, retain);
    if (kept) {
        done = kept < 0 ? -1 : 0;
        goto end;
    }
    if ((nodes = PyObject_GetAttr(call, visited)) == NULL || !PyDict_Check(nodes)) {
        goto end;
    }
    if (PyDict_GET_SIZE(nodes) >= MOST_NODES) {
        done = 0;
    }
    else if ((number = PyObject_CallMethodNoArgs(node, sequence_nr)) != NULL) {
        done = PyDict_SetItem(nodes, number, from);
    }
end:
    Py_XDECREF(number);
    Py_XDECREF(nodes);
    Py_XDECREF(from);
    Py_DECREF(node);
    return done;
}

/* Whether nothing has happened to the Save: then its handle is what backward gets. */
static int
untouched(PyObject *entry, PyObject *kept)
{
    int same = -1;
    PyObject *line = PyObject_GetAttr(entry, timeline), *then = PyObject_GetAttr(entry, version);
    PyObject *now = version_of(kept), *print = PyObject_GetAttr(entry, fingerprint), *swapped = NULL;
    if (line == NULL || then == NULL || now == NULL || print == NULL) {
        goto end;
    }
    if (print != Py_None || (same = PyObject_RichCompareBool(now, then, Py_EQ)) <= 0) {
        same = same < 0 && print == Py_None ? -1 : 0;
        goto end;
    }
    if ((swapped = PyObject_GetAttr(entry, swaps)) == NULL || (same = !PyObject_IsTrue(swapped)) == 0) {
        same = swapped == NULL ? -1 : 0;
        goto end;
    }
    if (line != Py_None) {
        PyObject *wrote = PyObject_GetAttr(line, last), *made = PyObject_GetAttr(entry, tick);
        same = wrote == NULL || made == NULL ? -1 : PyObject_RichCompareBool(wrote, made, Py_LT);
        Py_XDECREF(wrote);
        Py_XDECREF(made);
    }
end:
    Py_XDECREF(line);
    Py_XDECREF(then);
    Py_XDECREF(now);
    Py_XDECREF(print);
    Py_XDECREF(swapped);
    return same;
}

PyObject *
unpack(PyObject *Py_UNUSED(module), PyObject *packed)
{
    if (!Py_IS_TYPE(packed, Entry)) {
        return PyObject_CallOneArg(slow_unpack, packed);
    }
    if (note_visit(packed) < 0) {
        return NULL;
    }
    PyObject *kept = PyObject_GetAttr(packed, handle);
    if (kept == NULL) {
        return NULL;
    }
    int same = untouched(packed, kept);
    if (same > 0) {
        return kept;
    }
    Py_DECREF(kept);
    return same < 0 ? NULL : PyObject_CallMethodOneArg(ledger, ask, packed);
}

static int
keep(PyObject **where, PyObject *value)
{
    if (value == NULL) {
        return -1;
    }
    Py_XSETREF(*where, value);
    return 0;
}

PyObject *
know_saves(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *kind, *given[11];
    PyObject **kept[11] = {&ledger, &local, &asleep, &escapes, &running, &detach, &storage_of, &current_node,
                           &slow_pack, &slow_unpack, &visit};
    if (!PyArg_ParseTuple(args, "O!OOO!OO!OOOOOO", &PyType_Type, &kind, given, given + 1, &PySet_Type, given + 2,
                          given + 3, &PyList_Type, given + 4, given + 5, given + 6, given + 7, given + 8, given + 9,
                          given + 10))
    {
        return NULL;
    }
    for (int i = 0; i < 11; i++) {
        Py_XSETREF(*kept[i], Py_NewRef(given[i]));
    }
    if (keep(&fresh, PyObject_GetAttrString(ledger, "fresh")) || keep(&awake, PyObject_GetAttrString(ledger, "awake"))
        || keep(&ticks, PyObject_GetAttrString(ledger, "clock")))
    {
        return NULL;
    }
    Py_XSETREF(Entry, (PyTypeObject *)Py_NewRef(kind));
    Py_RETURN_NONE;
}

int
saves_ready(void)
{
    struct {
        PyObject **name;
        const char *text;
    } names[] = {
        {&handle, "handle"}, {&version, "version"}, {&tick, "tick"}, {&raw, "raw"}, {&scope, "scope"},
        {&original, "original"}, {&timeline, "timeline"}, {&last, "last"}, {&fingerprint, "print"}, {&swaps, "swaps"},
        {&scopes, "scopes"}, {&retain, "retain"}, {&visited, "visited"}, {&sequence_nr, "_sequence_nr"},
        {&resizable, "resizable"}, {&paranoid, "paranoid"}, {&saves, "saves"}, {&append, "append"}, {&many, "many"},
        {&thin, "thin"}, {&look, "look"}, {&known, "known"}, {&ask, "ask"},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        if ((*names[i].name = PyUnicode_InternFromString(names[i].text)) == NULL) {
            return -1;
        }
    }
    return 0;
}
