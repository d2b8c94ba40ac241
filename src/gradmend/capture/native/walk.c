/* The walk up the frames: sites.py has the same in Python, and says what it means. */

#include "native.h"

#include <frameobject.h>

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

typedef struct {
    PyObject *raw; /* NULL: none yet */
    Stop *stops;
    Py_ssize_t n, users;
} Chain;

#define CHAINS 1024 /* a power of two */
static Chain chains[CHAINS];
/* The chain that was met last from where a walk starts: the one to expect, as a function has few callers. */
static Chain *expected[CHAINS];

static size_t
mixed(size_t hash, const Stop *stop)
{
    return (hash ^ (size_t)stop->code >> 4 ^ (size_t)stop->lasti << 40) * 0x9E3779B97F4A7C15ull;
}

static Chain **
expected_at(const Stop *start)
{
    return &expected[mixed(0, start) >> 54 & (CHAINS - 1)]; /* of the upper bits, which are mixed best */
}

static int
same(const Stop *a, const Stop *b)
{
    return a->code == b->code && a->lasti == b->lasti;
}

static PyObject *
raw_of(const Stop *stops, Py_ssize_t n, Py_ssize_t users)
{
    size_t hash = (size_t)n;
    for (Py_ssize_t i = 0; i < n; i++) {
        hash = mixed(hash, stops + i);
    }
    Chain *chain = &chains[hash >> 54 & (CHAINS - 1)];
    if (chain->raw != NULL && chain->n == n && memcmp(chain->stops, stops, (size_t)n * sizeof(Stop)) == 0) {
        if (n) {
            *expected_at(stops) = chain;
        }
        return Py_NewRef(chain->raw);
    }
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
    Stop *copy = raw == NULL ? NULL : PyMem_Malloc((size_t)(n ? n : 1) * sizeof(Stop));
    if (copy != NULL) {
        PyObject_GC_UnTrack(raw); /* numbers only */
        memcpy(copy, stops, (size_t)n * sizeof(Stop));
        PyMem_Free(chain->stops);
        chain->stops = copy;
        chain->n = n;
        chain->users = users;
        Py_XSETREF(chain->raw, Py_NewRef(raw));
        if (n) {
            *expected_at(stops) = chain;
        }
    }
    return raw;
}

/* A walk under way: how far it has come, and the frame it is at. */
typedef struct {
    PyFrameObject *frame;
    Py_ssize_t n, users;
    Stop stops[MOST_FRAMES];
} Walk;

static Stop
stop_at(PyFrameObject *frame)
{
    PyObject *code = (PyObject *)PyFrame_GetCode(frame);
    Py_DECREF(code); /* the frame has it still */
    return (Stop){code, PyFrame_GetLasti(frame)};
}

static void
go_up(Walk *way)
{
    PyFrameObject *caller = PyFrame_GetBack(way->frame);
    Py_SETREF(way->frame, caller);
}

/* Past our own frames, to where the program called us. */
static int
leave_ours(Walk *way)
{
    long owner = own;
    while (way->frame != NULL) {
        if (owner_of(stop_at(way->frame).code, &owner) < 0) {
            return -1;
        }
        if (owner != own) {
            return 0;
        }
        go_up(way);
    }
    return 0;
}

/* Go on for as long as the frames are those expected. The whole chain, or NULL: the rest must be looked at. */
static PyObject *
follow(Walk *way)
{
    way->stops[0] = stop_at(way->frame);
    Chain *chain = *expected_at(way->stops);
    PyObject *raw = chain == NULL ? NULL : chain->raw;
    Py_XINCREF(raw);
    /* A frame's caller may be a new object, which may bring on a collection, in which others may walk. */
    while (raw != NULL && chain->raw == raw && way->frame != NULL && way->n < chain->n
           && same(way->stops + way->n, chain->stops + way->n))
    {
        go_up(way);
        if (++way->n < most_frames && way->frame != NULL) {
            way->stops[way->n] = stop_at(way->frame);
        }
    }
    if (raw != NULL && chain->raw == raw && way->n == chain->n
        && (way->frame == NULL || chain->users == most_users || way->n == most_frames))
    {
        return raw;
    }
    Py_XDECREF(raw);
    return NULL;
}

/* Up to the last frame that counts: 0, or -1 on an error. */
static int
explore(Walk *way)
{
    long owner;
    for (Py_ssize_t i = 0; i < way->n; i++) { /* so far as was expected, and so known */
        if (owner_of(way->stops[i].code, &owner) < 0) {
            return -1;
        }
        way->users += owner == user;
    }
    for (; way->frame != NULL && way->n < most_frames && way->users < most_users; go_up(way)) {
        Stop *stop = way->stops + way->n;
        *stop = stop_at(way->frame);
        if (owner_of(stop->code, &owner) < 0) {
            return -1;
        }
        if (owner != own) {
            way->n++;
            way->users += owner == user;
        }
        else if (way->users) {
            break; /* the launcher of `gradmend run`: what called it is no part of the program */
        }
    }
    return 0;
}

PyObject *
raw_here(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    if (meet == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "know_codes() comes before the first walk");
        return NULL;
    }
    Walk way;
    way.n = way.users = 0;
    way.frame = (PyFrameObject *)Py_XNewRef((PyObject *)PyEval_GetFrame());
    PyObject *raw = NULL;
    if (leave_ours(&way) == 0) {
        raw = way.frame == NULL ? NULL : follow(&way);
        if (raw == NULL && explore(&way) == 0) {
            raw = raw_of(way.stops, way.n, way.users);
        }
    }
    Py_XDECREF(way.frame);
    return raw;
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
    memset(expected, 0, sizeof(expected));
    Py_RETURN_NONE;
}
