/* The flight recorder's ring, and what leaves records in it: recorder.py has the same in Python. */

#include "native.h"

PyObject *ring = NULL;
static PyObject *ticks = NULL; /* the recorder's clock */

/* Leave a record of this write in the ring: 1 when done, 0 where Python must look, -1 on an error. */
int
note(PyObject *op, PyObject *how, PyObject *tensor)
{
    PyObject *record = ring == NULL ? NULL : record_of(op, how, 1);
    if (record == NULL) {
        return ring == NULL ? 0 : -1;
    }
    int done = record_adds(record, tensor);
    if (done < 0) {
        PyErr_Clear(); /* no memory of its own: Python knows what that means */
        done = 0;
    }
    if (done) {
        /* The walk may run Python, and other threads, which may end the recording. */
        PyObject *append = Py_NewRef(ring), *clock = Py_NewRef(ticks);
        done = record_ends(record, append, clock) < 0 ? -1 : 1;
        Py_DECREF(append);
        Py_DECREF(clock);
    }
    Py_DECREF(record);
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
