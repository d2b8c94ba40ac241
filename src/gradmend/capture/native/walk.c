/* The walk up the frames: sites.py has the same in Python, and says what it means. */

#include "native.h"

#include <frameobject.h>

static PyObject *meet; /* code -> its owner, and keeps the code */
static long own, user;
static Py_ssize_t most_frames, most_users;

/* Whose the code objects met lately are. */
enum { OWNERS = 8192 /* a power of two */ };
static struct {
    PyObject *code; /* borrowed: whoever told its owner keeps it for ever */
    long owner;
} owners[OWNERS];

static int
owner_of(PyObject *code, long *owner)
{
    size_t at = ((size_t)code >> 4) * MIXER >> 40 & (OWNERS - 1);
    if (owners[at].code != code) {
        PyObject *told = PyObject_CallOneArg(meet, code);
        if (told == NULL) {
            return -1;
        }
        owners[at].owner = PyLong_AsLong(told);
        owners[at].code = code;
        Py_DECREF(told);
    }
    *owner = owners[at].owner;
    return 0;
}

/* A loop comes by the same lines again and again: chains met before are handed out once more. */
typedef struct {
    PyObject *code; /* borrowed, as above */
    long lasti;
} Stop;

enum { CHAINS = 1024 /* a power of two */, MOST_FRAMES = 64 };
static struct {
    PyObject *raw; /* NULL: none yet */
    Py_ssize_t n;
    Stop stops[MOST_FRAMES];
} chains[CHAINS];

static PyObject *
raw_of(const Stop *stops, Py_ssize_t n)
{
    PyObject *raw = PyTuple_New(2 * n);
    for (Py_ssize_t i = 0; raw != NULL && i < 2 * n; i++) {
        const Stop *stop = stops + i / 2;
        PyObject *one = i % 2 ? PyLong_FromLong(stop->lasti) : PyLong_FromVoidPtr(stop->code);
        if (one == NULL) {
            Py_CLEAR(raw);
            break;
        }
        PyTuple_SET_ITEM(raw, i, one);
    }
    return raw;
}

static PyObject *
met_before(const Stop *stops, Py_ssize_t n)
{
    size_t hash = (size_t)n, size = (size_t)n * sizeof(Stop);
    for (Py_ssize_t i = 0; i < n; i++) {
        hash = (hash ^ (size_t)stops[i].code >> 4 ^ (size_t)stops[i].lasti << 40) * MIXER;
    }
    size_t at = hash >> 54 & (CHAINS - 1); /* of the upper bits, which are mixed best */
    if (chains[at].raw != NULL && chains[at].n == n && memcmp(chains[at].stops, stops, size) == 0) {
        return Py_NewRef(chains[at].raw);
    }
    PyObject *raw = raw_of(stops, n);
    if (raw != NULL) {
        PyObject_GC_UnTrack(raw); /* numbers only */
        memcpy(chains[at].stops, stops, size);
        chains[at].n = n;
        Py_XSETREF(chains[at].raw, Py_NewRef(raw));
    }
    return raw;
}

PyObject *
raw_here(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    if (meet == NULL) {
        return PyErr_Format(PyExc_RuntimeError, "know_codes() comes before the first walk");
    }
    Stop stops[MOST_FRAMES];
    Py_ssize_t n = 0, users = 0;
    PyFrameObject *frame = (PyFrameObject *)Py_XNewRef((PyObject *)PyEval_GetFrame());
    while (frame != NULL && n < most_frames && users < most_users) {
        PyObject *code = (PyObject *)PyFrame_GetCode(frame);
        Py_DECREF(code); /* the frame has it still */
        long owner;
        if (owner_of(code, &owner) < 0) {
            Py_DECREF(frame);
            return NULL;
        }
        if (owner != own) {
            stops[n++] = (Stop){code, PyFrame_GetLasti(frame)};
            users += owner == user;
        }
        else if (users) {
            break; /* the launcher of `gradmend run`: what called it is no part of the program */
        }
        PyFrameObject *caller = PyFrame_GetBack(frame);
        Py_SETREF(frame, caller);
    }
    Py_XDECREF(frame);
    return met_before(stops, n);
}

static PyObject *quiet, *word_saves; /* edge.quiet, and what the set of those who listen has while a Save lives */

/* Whether the line that calls a tap is of code whose writes are passed on. */
int
passed_on(PyObject *awake)
{
    if (PySet_GET_SIZE(quiet) == 0 || PySet_Contains(awake, word_saves) != 0) {
        return 0;
    }
    PyFrameObject *frame = PyEval_GetFrame();
    PyObject *globals = frame == NULL ? NULL : PyFrame_GetGlobals(frame);
    PyObject *id = globals == NULL ? NULL : PyLong_FromVoidPtr(globals);
    int found = id != NULL && PySet_Contains(quiet, id) == 1;
    Py_XDECREF(globals);
    Py_XDECREF(id);
    return found;
}

PyObject *
know_quiet(PyObject *Py_UNUSED(module), PyObject *set)
{
    Py_XSETREF(quiet, Py_NewRef(set));
    Py_XSETREF(word_saves, PyUnicode_InternFromString("saves"));
    return word_saves == NULL ? NULL : Py_NewRef(Py_None);
}

PyObject *
know_codes(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *callable;
    if (!PyArg_ParseTuple(args, "Ollnn", &callable, &own, &user, &most_frames, &most_users)) {
        return NULL;
    }
    if (most_frames > MOST_FRAMES) {
        return PyErr_Format(PyExc_ValueError, "at most %d frames", MOST_FRAMES);
    }
    Py_XSETREF(meet, Py_NewRef(callable));
    Py_RETURN_NONE;
}
