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

/* A loop comes by the same lines again and again: chains met before are handed out once more. */
#define MOST_FRAMES 64
typedef struct {
    PyObject *code; /* borrowed, as above */
    long lasti;
} Stop;

static struct {
    size_t hash;
    Py_ssize_t n;
    Stop *chain;
    PyObject *raw;
} chains[1024];

static PyObject *
raw_of(const Stop *chain, Py_ssize_t n)
{
    size_t hash = (size_t)n;
    for (Py_ssize_t i = 0; i < n; i++) {
        hash = (hash ^ (size_t)chain[i].code >> 4 ^ (size_t)chain[i].lasti << 40) * 0x9E3779B97F4A7C15ull;
    }
    size_t at = hash >> 54; /* the upper ten bits */
    if (chains[at].raw != NULL && chains[at].hash == hash && chains[at].n == n
        && memcmp(chains[at].chain, chain, (size_t)n * sizeof(Stop)) == 0)
    {
        return Py_NewRef(chains[at].raw);
    }
    PyObject *raw = PyTuple_New(2 * n);
    for (Py_ssize_t i = 0; raw != NULL && i < 2 * n; i++) {
        const Stop *stop = chain + i / 2;
        PyObject *one = i % 2 ? PyLong_FromLong(stop->lasti) : PyLong_FromVoidPtr(stop->code);
        if (one == NULL) {
            Py_CLEAR(raw);
            break;
        }
        PyTuple_SET_ITEM(raw, i, one);
    }
    Stop *copy = raw == NULL ? NULL : PyMem_Malloc((size_t)(n ? n : 1) * sizeof(Stop));
    if (copy != NULL) {
        PyObject_GC_UnTrack(raw); /* numbers only */
        memcpy(copy, chain, (size_t)n * sizeof(Stop));
        PyMem_Free(chains[at].chain);
        chains[at].chain = copy;
        chains[at].hash = hash;
        chains[at].n = n;
        Py_XSETREF(chains[at].raw, Py_NewRef(raw));
    }
    return raw;
}

PyObject *
walk(long depth)
{
    if (meet == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "know_codes() comes before the first walk");
        return NULL;
    }
    Stop chain[MOST_FRAMES];
    Py_ssize_t n = 0, users = 0;
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame != NULL && n < most_frames) {
        if (depth > 1) {
            depth--;
        }
        else {
            PyObject *code = (PyObject *)PyFrame_GetCode(frame);
            long owner;
            int failed = owner_of(code, &owner);
            Py_DECREF(code); /* the frame has it still */
            if (failed) {
                Py_DECREF(frame);
                return NULL;
            }
            if (owner != own) {
                chain[n].code = code;
                chain[n].lasti = PyFrame_GetLasti(frame);
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
    return raw_of(chain, n);
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
    if (most_frames > MOST_FRAMES) {
        PyErr_Format(PyExc_ValueError, "at most %d frames", MOST_FRAMES);
        return NULL;
    }
    Py_INCREF(callable);
    Py_XSETREF(meet, callable);
    Py_RETURN_NONE;
}
