/* A backward call and its record: backwards.py has the same in Python, and says what it means. */

#include "native.h"

/* What Python hands over once. */
static PyObject *history, *append, *running, *ticks, *grad_fn, *numbers, *slow, *hear, *known;
static Py_ssize_t with_nodes;
/* What it hands over each time that it arms: callables or None, and the containers that say when they are needed. */
static PyObject *before, *after, *failed, *when, *then;
/* Names. */
static PyObject *word_done, *word_failed, *word_sequence_nr;

/* Sequence numbers of the roots' nodes: of one alone, as nearly always, no tuple is made. */
static int
number_roots(Call *call, PyObject *roots)
{
    if (PyTuple_CheckExact(roots) && PyTuple_GET_SIZE(roots) == 1 && is_plain(PyTuple_GET_ITEM(roots, 0))) {
        PyObject *node = get(grad_fn, PyTuple_GET_ITEM(roots, 0));
        if (node != NULL && node != Py_None) {
            PyObject *same = PyObject_CallOneArg(known, node);
            Py_XDECREF(same);
            int bad = same == NULL ? -1 : number(PyObject_CallMethodNoArgs(node, word_sequence_nr), &call->root);
            Py_DECREF(node);
            if (bad == 0 || !PyErr_ExceptionMatches(PyExc_OverflowError)) {
                return bad;
            }
            PyErr_Clear(); /* the node of a delayed error: its number is the largest there is */
            return (call->roots = PyObject_CallOneArg(numbers, roots)) == NULL ? -1 : 0;
        }
        Py_XDECREF(node);
        return node == NULL || (call->roots = PyTuple_New(0)) == NULL ? -1 : 0;
    }
    return (call->roots = PyObject_CallOneArg(numbers, roots)) == NULL ? -1 : 0;
}

/* The oldest calls keep no nodes. */
static int
thin_out(void)
{
    Py_ssize_t n = keeping_nodes ? PySequence_Size(history) : 0;
    if (n <= with_nodes) {
        return n < 0 ? -1 : 0;
    }
    PyObject *old = PySequence_GetItem(history, n - 1 - with_nodes);
    if (old == NULL) {
        return -1;
    }
    if (is_call(old)) {
        forget_nodes((Call *)old);
    }
    Py_DECREF(old);
    return 0;
}

/* In the history, and among those that run. */
static Call *
begun(PyObject *roots, PyObject *retain)
{
    int keeps = PyObject_IsTrue(retain);
    Call *call = keeps < 0 ? NULL : call_of(keeps);
    if (call == NULL) {
        return NULL;
    }
    if (number(PyIter_Next(ticks), &call->tick) == 0 && (call->raw = walk(1)) != NULL && number_roots(call, roots) == 0)
    {
        PyObject *none = PyObject_CallOneArg(append, (PyObject *)call);
        Py_XDECREF(none);
        if (none != NULL && thin_out() == 0 && PyList_Append(running, (PyObject *)call) == 0) {
            return call;
        }
    }
    Py_DECREF(call);
    return NULL;
}

static int
ended(Call *call)
{
    for (Py_ssize_t i = PyList_GET_SIZE(running); i-- > 0;) {
        if (PyList_GET_ITEM(running, i) == (PyObject *)call) {
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
tell_failure(Call *call, PyObject *roots)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace != NULL) {
        PyException_SetTraceback(error, trace);
    }
    Py_XSETREF(call->outcome, Py_NewRef(word_failed));
    PyObject *told = failed == Py_None ? Py_NewRef(Py_None)
                                       : PyObject_CallFunctionObjArgs(hear, failed, call, error, roots, NULL);
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
    PyObject *roots = args[0], *result = NULL;
    Call *call = begun(roots, args[2]);
    if (call == NULL) {
        return NULL;
    }
    int needed = before == Py_None ? 0 : any(when);
    if (needed > 0) {
        PyObject *told = PyObject_CallFunctionObjArgs(before, call, roots, args[1], NULL);
        needed = told == NULL ? -1 : 0;
        Py_XDECREF(told);
    }
    if (needed == 0 && (result = PyObject_Vectorcall(original, args, nargs, kwnames)) != NULL) {
        Py_XSETREF(call->outcome, Py_NewRef(word_done));
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
        PyObject *told = needed < 0 ? NULL : PyObject_CallOneArg(after, (PyObject *)call);
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
    if (before == NULL || !PyList_CheckExact(state) || PyList_GET_SIZE(state) != 2) {
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
    PyObject *given[8], **kept[8] = {&history, &running, &ticks, &grad_fn, &numbers, &slow, &hear, &known};
    if (!PyArg_ParseTuple(args, "OO!OOOOOOn", given, &PyList_Type, given + 1, given + 2, given + 3, given + 4, given + 5,
                          given + 6, given + 7, &with_nodes))
    {
        return NULL;
    }
    if (Py_TYPE(given[3])->tp_descr_get == NULL) {
        PyErr_SetString(PyExc_TypeError, "grad_fn comes as a property");
        return NULL;
    }
    Name names[] = {{&word_done, "done"}, {&word_failed, "failed"}, {&word_sequence_nr, "_sequence_nr"}};
    if (INTERN(names) < 0) {
        return NULL;
    }
    PyObject *adds = PyObject_GetAttrString(given[0], "append");
    if (adds == NULL) {
        return NULL;
    }
    Py_XSETREF(append, adds);
    for (int i = 0; i < 8; i++) {
        Py_XSETREF(*kept[i], Py_NewRef(given[i]));
    }
    PyObject *nobody = Py_BuildValue("(OOOOO)", Py_None, Py_None, Py_None, Py_None, Py_None);
    PyObject *none = nobody == NULL ? NULL : hear_backwards(NULL, nobody);
    Py_XDECREF(nobody);
    return none;
}
