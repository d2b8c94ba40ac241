/* Where tensors lie, and the flight recorder's ring: recorder.py has the same in Python. */

#include "native.h"

/* TensorBase's own: the names on torch.Tensor may be tapped. */
static PyObject *is_contiguous = NULL, *data_ptr = NULL, *nbytes = NULL, *version = NULL, *gradient = NULL;
PyObject *ring = NULL;
static PyObject *ticks = NULL; /* the recorder's clock */

PyObject *
get(PyObject *property, PyObject *tensor)
{
    return Py_TYPE(property)->tp_descr_get(property, tensor, (PyObject *)Py_TYPE(tensor));
}

PyObject *
version_of(PyObject *tensor)
{
    return get(version, tensor);
}

/* (address, bytes, None, version) of a tensor without gaps; None for any other. */
PyObject *
place(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    PyObject *dense = is_contiguous ? PyObject_CallOneArg(is_contiguous, tensor) : Py_NewRef(Py_False);
    if (dense == NULL) {
        return NULL;
    }
    Py_DECREF(dense);
    if (dense != Py_True) {
        Py_RETURN_NONE;
    }
    PyObject *found[4] = {PyObject_CallOneArg(data_ptr, tensor), NULL, Py_None, NULL};
    if (found[0] != NULL && (found[1] = get(nbytes, tensor)) != NULL && (found[3] = version_of(tensor)) != NULL)
    {
        PyObject *made = PyTuple_New(4);
        if (made != NULL) {
            Py_INCREF(Py_None);
            for (int i = 0; i < 4; i++) {
                PyTuple_SET_ITEM(made, i, found[i]);
            }
            return made;
        }
    }
    Py_XDECREF(found[0]);
    Py_XDECREF(found[1]);
    Py_XDECREF(found[3]);
    return NULL;
}

/* Add the places of those in a list of parameters that have a gradient: 1 when done, 0 where one of them has gaps. */
int
add_places(PyObject *found, PyObject *params)
{
    PyObject *fast = gradient == NULL ? NULL : PySequence_Fast(params, "parameters come as a list");
    if (fast == NULL) {
        return gradient == NULL ? 0 : -1;
    }
    int done = 1;
    for (Py_ssize_t i = 0; done == 1 && i < PySequence_Fast_GET_SIZE(fast); i++) {
        PyObject *param = PySequence_Fast_GET_ITEM(fast, i), *grad = get(gradient, param);
        if (grad == NULL) {
            done = -1;
            break;
        }
        Py_DECREF(grad);
        if (grad == Py_None) {
            continue;
        }
        PyObject *where = place(NULL, param);
        if (where == NULL || where == Py_None) {
            done = where == NULL ? -1 : 0;
        }
        else if (PyList_Append(found, where) < 0) {
            done = -1;
        }
        Py_XDECREF(where);
    }
    Py_DECREF(fast);
    return done;
}

/* The same as a list of its own; None where one has gaps. */
PyObject *
places(PyObject *Py_UNUSED(module), PyObject *params)
{
    PyObject *found = PyList_New(0);
    int done = found == NULL ? -1 : add_places(found, params);
    if (done == 1) {
        return found;
    }
    Py_XDECREF(found);
    return done < 0 ? NULL : Py_NewRef(Py_None);
}

/* Leave (tick, op, how, site, [place]) in the ring: 1 when done, 0 where Python must look, -1 on an error. */
int
note(PyObject *op, PyObject *how, PyObject *tensor)
{
    PyObject *where = place(NULL, tensor);
    if (where == NULL) {
        PyErr_Clear(); /* no memory of its own: Python knows what that means */
        return 0;
    }
    if (where == Py_None || ring == NULL) {
        Py_DECREF(where);
        return 0;
    }
    int done = -1;
    PyObject *add = Py_NewRef(ring); /* the walk may run Python, and other threads, which may end the recording */
    PyObject *tick = PyIter_Next(ticks), *raw = walk(1), *places = PyList_New(1), *record = NULL;
    if (places != NULL) {
        PyList_SET_ITEM(places, 0, where);
    }
    else {
        Py_DECREF(where);
    }
    if (tick != NULL && raw != NULL && places != NULL
        && (record = PyTuple_Pack(5, tick, op, how, raw, places)) != NULL)
    {
        PyObject *none = PyObject_CallOneArg(add, record);
        done = none == NULL ? -1 : 1;
        Py_XDECREF(none);
    }
    Py_DECREF(add);
    Py_XDECREF(tick);
    Py_XDECREF(raw);
    Py_XDECREF(places);
    Py_XDECREF(record);
    return done;
}

/* torch's own call, and the record that it leaves of its first argument; `told` is the recorder's ear in Python. */
PyObject *
call_recorded(PyObject *original, PyObject *told, PyObject *op, PyObject *how, PyObject *const *args, size_t nargsf,
              PyObject *kwnames)
{
    PyObject *written = Py_NewRef(args[0]); /* the call may reuse the place of its arguments */
    PyObject *out = PyObject_Vectorcall(original, args, nargsf, kwnames);
    if (out != NULL && ring != NULL) {
        int done = note(op, how, written);
        if (done == 0) {
            PyObject *none = PyObject_CallFunction(told, "O(O)O", op, written, how);
            done = none == NULL ? -1 : 1;
            Py_XDECREF(none);
        }
        if (done < 0) {
            Py_CLEAR(out);
        }
    }
    Py_DECREF(written);
    return out;
}

PyObject *
know_tensors(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given[5], **kept[5] = {&is_contiguous, &data_ptr, &nbytes, &version, &gradient};
    if (!PyArg_ParseTuple(args, "OOOOO", given, given + 1, given + 2, given + 3, given + 4)) {
        return NULL;
    }
    for (int i = 0; i < 5; i++) {
        if (i > 1 && Py_TYPE(given[i])->tp_descr_get == NULL) {
            PyErr_SetString(PyExc_TypeError, "nbytes, _version and grad come as properties");
            return NULL;
        }
    }
    for (int i = 0; i < 5; i++) {
        Py_XSETREF(*kept[i], Py_NewRef(given[i]));
    }
    Py_RETURN_NONE;
}

PyObject *
note_in_python(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3) {
        PyErr_SetString(PyExc_TypeError, "note(op, how, tensor)");
        return NULL;
    }
    int done = ring == NULL ? 0 : note(args[0], args[1], args[2]);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

PyObject *
record_to(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *append, *clock;
    if (!PyArg_ParseTuple(args, "OO", &append, &clock)) {
        return NULL;
    }
    Py_XSETREF(ring, append == Py_None ? NULL : Py_NewRef(append));
    Py_XSETREF(ticks, clock == Py_None ? NULL : Py_NewRef(clock));
    Py_RETURN_NONE;
}
