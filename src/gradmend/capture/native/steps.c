/* An optimizer's step as one: stepping.py and Recorder.stepped() have the same in Python. */

#include "native.h"

#define EARS 2

static PyObject *ears[EARS];
static PyObject *word_groups, *word_params, *word_data;
/* What Python hands over once. */
static PyObject *awake, *asleep, *stepped, *overridden, *a_tensor;

/* The pre-hook: (optimizer, args, kwargs). */
PyObject *
before_step(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (awake == NULL || nargs != 3 || !PyTuple_Check(args[1]) || !PyDict_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "before_step(optimizer, args, kwargs)");
        return NULL;
    }
    for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(args[1]); i++) {
        if (PyCallable_Check(PyTuple_GET_ITEM(args[1], i))) {
            Py_RETURN_NONE; /* a closure runs the program's own code */
        }
    }
    PyObject *name, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(args[2], &at, &name, &value)) {
        if (PyCallable_Check(value)) {
            Py_RETURN_NONE;
        }
    }
    for (int i = 0; i < EARS; i++) {
        int was = PySet_Discard(awake, ears[i]);
        if (was < 0 || (was && PySet_Add(asleep, ears[i]) < 0)) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

/* The post-hook: (optimizer, args, kwargs). */
PyObject *
after_step(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (awake == NULL || nargs != 3) {
        PyErr_SetString(PyExc_TypeError, "after_step(optimizer, args, kwargs)");
        return NULL;
    }
    for (int i = 0; i < EARS; i++) {
        int was = PySet_Discard(asleep, ears[i]);
        if (was < 0 || (was && PySet_Add(awake, ears[i]) < 0)) {
            return NULL;
        }
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(stepped); i++) {
        PyObject *hear = Py_NewRef(PyList_GET_ITEM(stepped, i));
        PyObject *none = PyObject_CallOneArg(hear, args[0]);
        Py_DECREF(hear);
        if (none == NULL) {
            return NULL;
        }
        Py_DECREF(none);
    }
    Py_RETURN_NONE;
}

/* "AdamW.step". Asked for after every step, and nearly always of the same class, so the last is kept. */
static PyObject *
name_of(PyObject *ear, PyTypeObject *type)
{
    if (PyList_GET_ITEM(ear, 3) != (PyObject *)type) {
        PyObject *name = PyType_GetName(type), *op = name == NULL ? NULL : PyUnicode_FromFormat("%U.step", name);
        Py_XDECREF(name);
        if (op == NULL || PyList_SetItem(ear, 3, Py_NewRef((PyObject *)type)) < 0 || PyList_SetItem(ear, 4, op) < 0) {
            return NULL;
        }
    }
    return Py_NewRef(PyList_GET_ITEM(ear, 4));
}

/* How many parameters the groups have; -1 where they are not as torch makes them. */
static Py_ssize_t
count_params(PyObject *groups)
{
    Py_ssize_t n = PyList_CheckExact(groups) ? 0 : -1;
    for (Py_ssize_t i = 0; n >= 0 && i < PyList_GET_SIZE(groups); i++) {
        PyObject *group = PyList_GET_ITEM(groups, i);
        PyObject *params = PyDict_Check(group) ? PyDict_GetItemWithError(group, word_params) : NULL;
        n = params != NULL && PyList_CheckExact(params) ? n + PyList_GET_SIZE(params) : -1;
    }
    return n;
}

/* All parameters that were stepped. NULL where Python must look: it meets the same error, and knows what it means. */
static PyObject *
record_step(PyObject *optimizer, PyObject *op)
{
    PyObject *groups = truth(PyObject_CallOneArg(overridden, a_tensor)) ? NULL : PyObject_GetAttr(optimizer, word_groups);
    Py_ssize_t n = groups == NULL ? -1 : count_params(groups);
    PyObject *record = n < 0 ? NULL : record_of(op, word_data, n);
    for (Py_ssize_t i = 0; record != NULL && i < PyList_GET_SIZE(groups); i++) {
        if (record_steps(record, PyDict_GetItemWithError(PyList_GET_ITEM(groups, i), word_params)) != 1) {
            Py_CLEAR(record);
        }
    }
    Py_XDECREF(groups);
    return record;
}

/* The ear itself. Its `self` is [append, clock, slow, the class that stepped last, its name for the record]. */
static PyObject *
hear_step(PyObject *self, PyObject *optimizer)
{
    PyObject *op = name_of(self, Py_TYPE(optimizer)), *record = op == NULL ? NULL : record_step(optimizer, op);
    Py_XDECREF(op);
    if (record == NULL) {
        PyErr_Clear();
        return PyObject_CallOneArg(PyList_GET_ITEM(self, 2), optimizer);
    }
    int bad = record_ends(record, PyList_GET_ITEM(self, 0), PyList_GET_ITEM(self, 1));
    Py_DECREF(record);
    return bad ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef ear = {"stepped", hear_step, METH_O, "An optimizer has stepped."};

PyObject *
steps_to(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *append, *clock, *slow;
    if (!PyArg_ParseTuple(args, "OOO", &append, &clock, &slow)) {
        return NULL;
    }
    PyObject *self = Py_BuildValue("[OOOOO]", append, clock, slow, Py_None, Py_None);
    PyObject *made = self == NULL ? NULL : PyCFunction_New(&ear, self);
    Py_XDECREF(self);
    return made;
}

PyObject *
know_steps(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given[5], **kept[5] = {&awake, &asleep, &stepped, &overridden, &a_tensor};
    if (!PyArg_ParseTuple(args, "O!O!O!OO", &PySet_Type, given, &PySet_Type, given + 1, &PyList_Type, given + 2,
                          given + 3, given + 4))
    {
        return NULL;
    }
    Name names[] = {
        {&ears[0], "listeners"}, {&ears[1], "edits"},          {&word_data, "data"},
        {&word_params, "params"}, {&word_groups, "param_groups"},
    };
    if (INTERN(names) < 0) {
        return NULL;
    }
    for (int i = 0; i < 5; i++) {
        Py_XSETREF(*kept[i], Py_NewRef(given[i]));
    }
    Py_RETURN_NONE;
}
