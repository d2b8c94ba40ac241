/* What runs most often while a program trains, for a machine that has a compiler:

   raw_here()  the walk up the frames (sites.py has the same in Python, and says what it means)
   place(), places()
               where tensors lie, for the flight recorder (recorder.py has the same)
   Tap         a method of torch.Tensor (taps/wrappers.py has the same): while nobody listens it passes its call on,
               while only the recorder does it leaves a record, and else it calls the tap in Python

   Only CPython's public API is used, and none of torch's, so that one build serves every torch. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>

/* ------------------------------------------------------------------ the walk */

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

static PyObject *
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

static PyObject *
raw_here(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    long depth = nargs ? PyLong_AsLong(args[0]) : 1;
    return PyErr_Occurred() ? NULL : walk(depth);
}

static PyObject *
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

/* ------------------------------------------------------------------ the recorder */

static PyObject *word_listeners;
/* TensorBase's own: the names on torch.Tensor may be tapped. */
static PyObject *is_contiguous = NULL, *data_ptr = NULL, *nbytes = NULL, *version = NULL, *gradient = NULL;
static PyObject *ring = NULL, *ticks = NULL; /* append() of the recorder's ring, while it is on, and its clock */

static PyObject *
get(PyObject *property, PyObject *tensor)
{
    return Py_TYPE(property)->tp_descr_get(property, tensor, (PyObject *)Py_TYPE(tensor));
}

/* (address, bytes, None, version) of a tensor without gaps; None for any other. */
static PyObject *
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
    if (found[0] != NULL && (found[1] = get(nbytes, tensor)) != NULL && (found[3] = get(version, tensor)) != NULL)
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

/* The places of those in a list of parameters that have a gradient; None where one of them has gaps. */
static PyObject *
places(PyObject *Py_UNUSED(module), PyObject *params)
{
    if (gradient == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *fast = PySequence_Fast(params, "parameters come as a list"), *found = PyList_New(0);
    if (fast == NULL || found == NULL) {
        goto error;
    }
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast); i++) {
        PyObject *param = PySequence_Fast_GET_ITEM(fast, i), *grad = get(gradient, param);
        if (grad == NULL) {
            goto error;
        }
        Py_DECREF(grad);
        if (grad == Py_None) {
            continue;
        }
        PyObject *where = place(NULL, param);
        if (where == NULL) {
            goto error;
        }
        if (where == Py_None) {
            Py_DECREF(fast);
            Py_DECREF(found);
            return where;
        }
        int failed = PyList_Append(found, where);
        Py_DECREF(where);
        if (failed) {
            goto error;
        }
    }
    Py_DECREF(fast);
    return found;
error:
    Py_XDECREF(fast);
    Py_XDECREF(found);
    return NULL;
}

/* Leave (tick, op, how, site, [place]) in the ring: 1 when done, 0 where Python must look, -1 on an error. */
static int
note(PyObject *op, PyObject *how, PyObject *tensor)
{
    PyObject *where = place(NULL, tensor);
    if (where == NULL) {
        PyErr_Clear(); /* no memory of its own: Python knows what that means */
        return 0;
    }
    if (where == Py_None) {
        Py_DECREF(where);
        return 0;
    }
    int done = -1;
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
        PyObject *none = PyObject_CallOneArg(ring, record);
        done = none == NULL ? -1 : 1;
        Py_XDECREF(none);
    }
    Py_XDECREF(tick);
    Py_XDECREF(raw);
    Py_XDECREF(places);
    Py_XDECREF(record);
    return done;
}

static PyObject *
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

static PyObject *
note_in_python(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3) {
        PyErr_SetString(PyExc_TypeError, "note(op, how, tensor)");
        return NULL;
    }
    int done = ring == NULL ? 0 : note(args[0], args[1], args[2]);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *
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

/* ------------------------------------------------------------------ the tap */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *original; /* torch's own */
    PyObject *slow;     /* the tap in Python, for when somebody listens */
    PyObject *awake;    /* the set of those who do */
    PyObject *plain;    /* the classes that can't override anything */
    PyObject *overridden; /* whether a mode does */
    PyObject *told;       /* the recorder's ear in Python */
    PyObject *op, *how;   /* for the record */
    PyObject *dict, *weakrefs;
} Tap;

static PyObject *
Tap_recorded(Tap *tap, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    PyObject *written = Py_NewRef(args[0]); /* the call may reuse the place of its arguments */
    PyObject *out = PyObject_Vectorcall(tap->original, args, nargsf, kwnames);
    if (out != NULL && ring != NULL) {
        int done = note(tap->op, tap->how, written);
        if (done == 0) {
            PyObject *told = PyObject_CallFunction(tap->told, "O(O)O", tap->op, written, tap->how);
            done = told == NULL ? -1 : 1;
            Py_XDECREF(told);
        }
        if (done < 0) {
            Py_CLEAR(out);
        }
    }
    Py_DECREF(written);
    return out;
}

static PyObject *
Tap_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Tap *tap = (Tap *)callable;
    Py_ssize_t listening = PySet_GET_SIZE(tap->awake);
    if (listening == 0 || (listening == 1 && ring != NULL && PySet_Contains(tap->awake, word_listeners) == 1)) {
        if (PyVectorcall_NARGS(nargsf) > 0 && PySet_Contains(tap->plain, (PyObject *)Py_TYPE(args[0])) == 1) {
            PyObject *over = PyObject_CallOneArg(tap->overridden, args[0]);
            if (over == NULL) {
                return NULL;
            }
            Py_DECREF(over);
            if (over == Py_False) {
                if (listening == 0) {
                    return PyObject_Vectorcall(tap->original, args, nargsf, kwnames);
                }
                return Tap_recorded(tap, args, nargsf, kwnames);
            }
        }
    }
    return PyObject_Vectorcall(tap->slow, args, nargsf, kwnames);
}

static PyObject *
Tap_get(PyObject *self, PyObject *obj, PyObject *Py_UNUSED(type))
{
    if (obj == NULL || obj == Py_None) {
        return Py_NewRef(((Tap *)self)->slow); /* `torch.Tensor.add_`: inspect and others expect a function */
    }
    return PyMethod_New(self, obj);
}

static int
Tap_traverse(Tap *tap, visitproc visit, void *arg)
{
    Py_VISIT(tap->original);
    Py_VISIT(tap->slow);
    Py_VISIT(tap->awake);
    Py_VISIT(tap->plain);
    Py_VISIT(tap->overridden);
    Py_VISIT(tap->told);
    Py_VISIT(tap->op);
    Py_VISIT(tap->how);
    Py_VISIT(tap->dict);
    return 0;
}

static int
Tap_clear(Tap *tap)
{
    Py_CLEAR(tap->original);
    Py_CLEAR(tap->slow);
    Py_CLEAR(tap->awake);
    Py_CLEAR(tap->plain);
    Py_CLEAR(tap->overridden);
    Py_CLEAR(tap->told);
    Py_CLEAR(tap->op);
    Py_CLEAR(tap->how);
    Py_CLEAR(tap->dict);
    return 0;
}

static void
Tap_dealloc(Tap *tap)
{
    PyObject_GC_UnTrack(tap);
    if (tap->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)tap);
    }
    Tap_clear(tap);
    Py_TYPE(tap)->tp_free((PyObject *)tap);
}

static PyObject *
Tap_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *original, *slow, *op, *how, *awake, *plain, *overridden, *told;
    if (!PyArg_ParseTuple(args, "OOUUO!O!OO", &original, &slow, &op, &how, &PySet_Type, &awake, &PyFrozenSet_Type,
                          &plain, &overridden, &told))
    {
        return NULL;
    }
    Tap *tap = (Tap *)type->tp_alloc(type, 0);
    if (tap != NULL) {
        tap->call = Tap_call;
        tap->original = Py_NewRef(original);
        tap->slow = Py_NewRef(slow);
        tap->op = Py_NewRef(op);
        tap->how = Py_NewRef(how);
        tap->awake = Py_NewRef(awake);
        tap->plain = Py_NewRef(plain);
        tap->overridden = Py_NewRef(overridden);
        tap->told = Py_NewRef(told);
    }
    return (PyObject *)tap;
}

static PyGetSetDef Tap_attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict},
    {NULL},
};

static PyTypeObject TapType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "gradmend.capture._fast.Tap",
    .tp_doc = "A method of torch.Tensor that passes its call on while nobody listens.",
    .tp_basicsize = sizeof(Tap),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL
                | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(Tap, call),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = Tap_get,
    .tp_traverse = (traverseproc)Tap_traverse,
    .tp_clear = (inquiry)Tap_clear,
    .tp_dealloc = (destructor)Tap_dealloc,
    .tp_new = Tap_new,
    .tp_getset = Tap_attributes,
    .tp_weaklistoffset = offsetof(Tap, weakrefs),
    .tp_dictoffset = offsetof(Tap, dict),
    .tp_getattro = PyObject_GenericGetAttr,
    .tp_setattro = PyObject_GenericSetAttr,
};

static PyMethodDef functions[] = {
    {"raw_here", (PyCFunction)(void (*)(void))raw_here, METH_FASTCALL, "The call chain above the caller."},
    {"place", place, METH_O, "(address, bytes, None, version) of a tensor without gaps; None for any other."},
    {"places", places, METH_O, "The places of the parameters that have a gradient; None where one has gaps."},
    {"note", (PyCFunction)(void (*)(void))note_in_python, METH_FASTCALL,
     "note(op, how, tensor): leave a record of this write; False where Python must do it."},
    {"record_to", record_to, METH_VARARGS, "record_to(append, clock): where taps leave records; (None, None) ends it."},
    {"know_codes", know_codes, METH_VARARGS, "know_codes(meet, own, user, most_frames, most_users), for raw_here()."},
    {"know_tensors", know_tensors, METH_VARARGS,
     "know_tensors(is_contiguous, data_ptr, nbytes, _version, grad) of TensorBase, for place() and places()."},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "gradmend.capture._fast",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit__fast(void)
{
    if (PyType_Ready(&TapType) < 0 || (word_listeners = PyUnicode_InternFromString("listeners")) == NULL) {
        return NULL;
    }
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && PyModule_AddObjectRef(made, "Tap", (PyObject *)&TapType) < 0) {
        Py_CLEAR(made);
    }
    return made;
}
