/* A backward call and its record: backwards.py has the same in Python, and says what it means. */

#include "native.h"

#define FIELDS 8

/* What Python hands over once. */
static PyTypeObject *BackwardCall = NULL;
static PyObject *history, *running, *ticks, *plain, *grad_fn, *numbers, *slow, *hear;
static Py_ssize_t with_nodes;
/* What it hands over each time that it arms: callables or None, and the containers that say when they are needed. */
static PyObject *before, *after, *failed, *when, *then;
/* Names. */
static PyObject *names[FIELDS], *word_append, *word_visited, *word_outcome, *word_running, *word_done, *word_failed,
    *word_sequence_nr;

/* Sequence numbers of the roots' nodes. */
static PyObject *
numbers_of(PyObject *roots)
{
    PyObject *found = PyTuple_CheckExact(roots) ? PyList_New(0) : PyObject_CallOneArg(numbers, roots);
    if (found == NULL || PyTuple_CheckExact(found)) {
        return found;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(roots); i++) {
        PyObject *root = PyTuple_GET_ITEM(roots, i);
        if (PySet_Contains(plain, (PyObject *)Py_TYPE(root)) != 1) {
            Py_DECREF(found);
            return PyObject_CallOneArg(numbers, roots);
        }
        PyObject *node = get(grad_fn, root);
        PyObject *number = node == NULL || node == Py_None ? NULL : PyObject_CallMethodNoArgs(node, word_sequence_nr);
        int bad = number == NULL ? node != Py_None : PyList_Append(found, number) < 0;
        Py_XDECREF(node);
        Py_XDECREF(number);
        if (bad) {
            Py_DECREF(found);
            return NULL;
        }
    }
    PyObject *made = PyList_AsTuple(found);
    Py_DECREF(found);
    return made;
}

/* The oldest calls keep no nodes. */
static int
thin_out(void)
{
    Py_ssize_t n = PySequence_Size(history);
    if (n <= with_nodes) {
        return n < 0 ? -1 : 0;
    }
    PyObject *old = PySequence_GetItem(history, n - 1 - with_nodes);
    PyObject *visited = old == NULL ? NULL : PyObject_GetAttr(old, word_visited);
    Py_XDECREF(old);
    if (visited == NULL) {
        return -1;
    }
    if (PyDict_Check(visited)) {
        PyDict_Clear(visited);
    }
    Py_DECREF(visited);
    return 0;
}

/* A BackwardCall, in the history and among those that run. */
static PyObject *
begun(PyObject *roots, PyObject *retain)
{
    int keeps = PyObject_IsTrue(retain);
    PyObject *call = keeps < 0 ? NULL : PyType_GenericNew(BackwardCall, NULL, NULL);
    if (call == NULL) {
        return NULL;
    }
    for (int i = 0; i < FIELDS; i++) { /* in the order of `names` */
        PyObject *value = i == 0   ? PyIter_Next(ticks)
                          : i == 1 ? walk(1)
                          : i == 2 ? numbers_of(roots)
                          : i == 3 ? PyBool_FromLong(keeps)
                          : i == 4 ? PyLong_FromUnsignedLong(PyThread_get_thread_ident())
                          : i == 5 ? Py_NewRef(word_running)
                          : i == 6 ? PyDict_New()
                                   : PyTuple_New(0);
        int bad = value == NULL || PyObject_SetAttr(call, names[i], value) < 0;
        Py_XDECREF(value);
        if (bad) {
            goto error;
        }
    }
    PyObject *none = PyObject_CallMethodOneArg(history, word_append, call);
    Py_XDECREF(none);
    if (none != NULL && thin_out() == 0 && PyList_Append(running, call) == 0) {
        return call;
    }
error:
    Py_DECREF(call);
    return NULL;
}

static int
ended(PyObject *call)
{
    for (Py_ssize_t i = PyList_GET_SIZE(running); i-- > 0;) {
        if (PyList_GET_ITEM(running, i) == call) {
            return PyList_SetSlice(running, i, i + 1, NULL);
        }
    }
    return 0;
}

/* Whether one of the containers holds something; None stands for always. */
static int
any(PyObject *containers)
{
    if (containers == Py_None) {
        return 1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(containers); i++) {
        int full = PyObject_IsTrue(PyTuple_GET_ITEM(containers, i));
        if (full) {
            return full;
        }
    }
    return 0;
}

/* The error that is set is told to `failed`, and stays set. */
static void
tell_failure(PyObject *call, PyObject *roots)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace != NULL) {
        PyException_SetTraceback(error, trace);
    }
    PyObject *told = PyObject_SetAttr(call, word_outcome, word_failed) < 0 ? NULL : Py_NewRef(Py_None);
    if (told != NULL && failed != Py_None) {
        Py_SETREF(told, PyObject_CallFunctionObjArgs(hear, failed, call, error, roots, NULL));
    }
    if (told == NULL) { /* interrupted */
        Py_XDECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(trace);
        return;
    }
    Py_DECREF(told);
    PyErr_Restore(type, error, trace);
}

/* In the words of _recorded() in Python, which is asked where the arguments are not as torch gives them. */
static PyObject *
in_python(PyObject *original, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *given = PyTuple_New(nargs + 1), *named = PyDict_New(), *result = NULL;
    if (given != NULL && named != NULL) {
        PyTuple_SET_ITEM(given, 0, Py_NewRef(original));
        for (Py_ssize_t i = 0; i < nargs; i++) {
            PyTuple_SET_ITEM(given, i + 1, Py_NewRef(args[i]));
        }
        Py_ssize_t n = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames), i = 0;
        while (i < n && PyDict_SetItem(named, PyTuple_GET_ITEM(kwnames, i), args[nargs + i]) == 0) {
            i++;
        }
        result = i < n ? NULL : PyObject_Call(slow, given, named);
    }
    Py_XDECREF(given);
    Py_XDECREF(named);
    return result;
}

static PyObject *
recorded(PyObject *original, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *roots = args[0], *result = NULL, *call = begun(roots, args[2]);
    if (call == NULL) {
        return NULL;
    }
    int needed = before == Py_None ? 0 : any(when);
    if (needed > 0) {
        PyObject *told = PyObject_CallFunctionObjArgs(before, call, roots, args[1], NULL);
        needed = told == NULL ? -1 : 0;
        Py_XDECREF(told);
    }
    if (needed == 0 && (result = PyObject_Vectorcall(original, args, nargs, kwnames)) != NULL
        && PyObject_SetAttr(call, word_outcome, word_done) < 0)
    {
        Py_CLEAR(result);
    }
    if (result == NULL) {
        tell_failure(call, roots);
        PyObject *type, *error, *trace;
        PyErr_Fetch(&type, &error, &trace);
        ended(call);
        PyErr_Restore(type, error, trace);
    }
    else if (ended(call) < 0) {
        Py_CLEAR(result);
    }
    else if (after != Py_None && (needed = any(then)) != 0) {
        PyObject *told = needed < 0 ? NULL : PyObject_CallOneArg(after, call);
        if (told == NULL) {
            Py_CLEAR(result);
        }
        Py_XDECREF(told);
    }
    Py_DECREF(call);
    return result;
}

/* Its `self` is [torch's own, whether we record]. */
static PyObject *
run(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *original = Py_NewRef(PyList_GET_ITEM(self, 0)), *result;
    if (PyList_GET_ITEM(self, 1) != Py_True) {
        result = PyObject_Vectorcall(original, args, nargs, kwnames);
    }
    else if (nargs < 3) {
        result = in_python(original, args, nargs, kwnames);
    }
    else {
        result = recorded(original, args, nargs, kwnames);
    }
    Py_DECREF(original);
    return result;
}

static PyMethodDef runner = {"_engine_run_backward", (PyCFunction)(void (*)(void))run, METH_FASTCALL | METH_KEYWORDS,
                             "torch's own, and a record of it."};

PyObject *
backward(PyObject *Py_UNUSED(module), PyObject *state)
{
    if (BackwardCall == NULL || !PyList_CheckExact(state) || PyList_GET_SIZE(state) != 2) {
        PyErr_SetString(PyExc_TypeError, "backward([original, live]), after know_backwards()");
        return NULL;
    }
    return PyCFunction_New(&runner, state);
}

PyObject *
hear_backwards(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given[5], **kept[5] = {&before, &after, &failed, &when, &then};
    if (!PyArg_ParseTuple(args, "OOOOO", given, given + 1, given + 2, given + 3, given + 4)) {
        return NULL;
    }
    for (int i = 3; i < 5; i++) {
        if (given[i] != Py_None && !PyTuple_CheckExact(given[i])) {
            PyErr_SetString(PyExc_TypeError, "`when` and `then` are tuples of containers, or None");
            return NULL;
        }
    }
    for (int i = 0; i < 5; i++) {
        Py_XSETREF(*kept[i], Py_NewRef(given[i]));
    }
    Py_RETURN_NONE;
}

PyObject *
know_backwards(PyObject *Py_UNUSED(module), PyObject *args)
{
    static const char *const words[FIELDS] = {"tick",   "raw",     "roots",   "retain",
                                              "thread", "outcome", "visited", "seeds"};
    PyObject *type, *given[8], **kept[8] = {&history, &running, &ticks, &plain, &grad_fn, &numbers, &slow, &hear};
    if (!PyArg_ParseTuple(args, "O!OO!OO!OOOOn", &PyType_Type, &type, given, &PyList_Type, given + 1, given + 2,
                          &PyFrozenSet_Type, given + 3, given + 4, given + 5, given + 6, given + 7, &with_nodes))
    {
        return NULL;
    }
    if (Py_TYPE(given[4])->tp_descr_get == NULL) {
        PyErr_SetString(PyExc_TypeError, "grad_fn comes as a property");
        return NULL;
    }
    for (int i = 0; i < FIELDS; i++) {
        Py_XSETREF(names[i], PyUnicode_InternFromString(words[i]));
        if (names[i] == NULL) {
            return NULL;
        }
    }
    Name more[] = {
        {&word_append, "append"}, {&word_running, "running"},          {&word_done, "done"},
        {&word_failed, "failed"}, {&word_sequence_nr, "_sequence_nr"},
    };
    if (INTERN(more) < 0) {
        return NULL;
    }
    word_outcome = names[5];
    word_visited = names[6];
    for (int i = 0; i < 8; i++) {
        Py_XSETREF(*kept[i], Py_NewRef(given[i]));
    }
    PyObject *nobody = Py_BuildValue("(OOOOO)", Py_None, Py_None, Py_None, Py_None, Py_None);
    PyObject *none = nobody == NULL ? NULL : hear_backwards(NULL, nobody);
    Py_XDECREF(nobody);
    if (none != NULL) {
        Py_INCREF(type);
        Py_XSETREF(BackwardCall, (PyTypeObject *)type);
    }
    return none;
}
