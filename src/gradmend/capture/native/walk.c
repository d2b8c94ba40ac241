/* The walk up the frames: sites.py has the same in Python, and says what it means. */

#include "native.h"

typedef struct {
    PyObject *code; /* borrowed: whoever told its owner keeps it for ever */
    long owner;
} Met;

static Met *met = NULL; /* open addressing, never more than half full */
static size_t met_size = 0, met_used = 0;

static PyObject *meet = NULL; /* code -> its owner, and keeps the code */
static long own = -1, user = -1;
static Py_ssize_t most_frames = 0, most_users = 0;

static size_t
place_of(PyObject *code)
{
    size_t at = ((size_t)code >> 4) * 0x9E3779B97F4A7C15ull & (met_size - 1);
    while (met[at].code != NULL && met[at].code != code) {
        at = (at + 1) & (met_size - 1);
    }
    return at;
}

static int
grow(void)
{
    size_t size = met_size ? 2 * met_size : 1024, before = met_size;
    Met *old = met, *bigger = PyMem_Calloc(size, sizeof(Met));
    if (bigger == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    met = bigger;
    met_size = size;
    for (size_t i = 0; i < before; i++) {
        if (old[i].code != NULL) {
            met[place_of(old[i].code)] = old[i];
        }
    }
    PyMem_Free(old);
    return 0;
}

static int
owner_of(PyObject *code, long *owner)
{
    if (met_size) {
        size_t at = place_of(code);
        if (met[at].code == code) {
            *owner = met[at].owner;
            return 0;
        }
    }
    PyObject *told = PyObject_CallOneArg(meet, code);
    if (told == NULL) {
        return -1;
    }
    *owner = PyLong_AsLong(told);
    Py_DECREF(told);
    if (PyErr_Occurred() || (2 * met_used >= met_size && grow() < 0)) {
        return -1;
    }
    size_t at = place_of(code);
    if (met[at].code == NULL) {
        met[at].code = code;
        met_used++;
    }
    met[at].owner = *owner;
    return 0;
}

PyObject *
walk(long depth)
{
    if (meet == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "know_codes() comes before the first walk");
        return NULL;
    }
    PyObject *flat[2 * 64];
    Py_ssize_t n = 0, users = 0;
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame != NULL && n < 2 * most_frames) {
        if (depth > 1) {
            depth--;
        }
        else {
            PyObject *code = (PyObject *)PyFrame_GetCode(frame);
            long owner;
            int failed = owner_of(code, &owner);
            Py_DECREF(code); /* the frame has it still */
            if (failed) {
                goto error;
            }
            if (owner != own) {
                if ((flat[n] = PyLong_FromVoidPtr(code)) == NULL) {
                    goto error;
                }
                n++;
                if ((flat[n] = PyLong_FromLong(PyFrame_GetLasti(frame))) == NULL) {
                    goto error;
                }
                n++;
                if (owner == user && ++users == most_users) {
                    break;
                }
            }
            else if (users) {
                break; /* the launcher of `gradmend run`: what called it is no part of the program */
            }
        }
        PyFrameObject *caller = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = caller;
    }
    Py_XDECREF(frame);
    PyObject *raw = PyTuple_New(n);
    if (raw != NULL) {
        for (Py_ssize_t i = 0; i < n; i++) {
            PyTuple_SET_ITEM(raw, i, flat[i]);
        }
        return raw;
    }
    frame = NULL;
error:
    Py_XDECREF(frame);
    while (n > 0) {
        Py_DECREF(flat[--n]);
    }
    return NULL;
}

PyObject *
raw_here(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    long depth = nargs ? PyLong_AsLong(args[0]) : 1;
    return PyErr_Occurred() ? NULL : walk(depth);
}

PyObject *
know_codes(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *callable;
    if (!PyArg_ParseTuple(args, "Ollnn", &callable, &own, &user, &most_frames, &most_users)) {
        return NULL;
    }
    if (most_frames > 64) {
        PyErr_SetString(PyExc_ValueError, "at most 64 frames");
        return NULL;
    }
    Py_INCREF(callable);
    Py_XSETREF(meet, callable);
    Py_RETURN_NONE;
}
