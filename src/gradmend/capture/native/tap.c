/* A method of torch.Tensor, as taps/wrappers.py makes it in Python. While nobody listens it calls torch's own. Else it
   gives the call of a plain tensor to `heard`, and any other to the tap in Python. It equals what it replaces, so that
   a program's tables of torch's methods find it, and it is pickled as that. */

#include "native.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *awake;      /* the set of those who listen */
    vectorcallfunc pass;  /* how to call ... */
    PyObject *original;   /* torch's own */
    PyObject *slow;       /* the tap in Python */
    PyObject *overridden; /* whether a mode overrides */
    PyObject *heard;      /* (original, op, how, args, kwargs) -> what the call gives; None: all calls go to `slow` */
    PyObject *op, *how;
    PyObject *dict, *weakrefs;
} Tap;

/* What `t[key] = value` calls, without its wrapper. */
static PyObject *
set_item(PyObject *original, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (PyVectorcall_NARGS(nargsf) != 3 || kwnames != NULL) {
        return PyObject_Vectorcall(original, args, nargsf, kwnames);
    }
    objobjargproc store = PyDescr_TYPE(original)->tp_as_mapping->mp_ass_subscript;
    return store(args[0], args[1], args[2]) < 0 ? NULL : Py_NewRef(Py_None);
}

static vectorcallfunc
way_to(PyObject *original)
{
    if (Py_IS_TYPE(original, &PyMethodDescr_Type)) {
        return PyVectorcall_Function(original);
    }
    if (Py_IS_TYPE(original, &PyWrapperDescr_Type)
        && PyUnicode_CompareWithASCIIString(PyDescr_NAME(original), "__setitem__") == 0)
    {
        return set_item;
    }
    return PyObject_Vectorcall;
}

/* Somebody listens, or might override. */
static PyObject *
Tap_heard(Tap *tap, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (nargs == 0 || !is_plain(args[0]) || PySet_GET_SIZE(tap->awake) == 0
        || truth(PyObject_CallOneArg(tap->overridden, args[0])) != 0)
    {
        return PyErr_Occurred() ? NULL : PyObject_Vectorcall(tap->slow, args, nargsf, kwnames);
    }
    PyObject *given = PyTuple_New(nargs), *named = kwnames == NULL ? Py_NewRef(Py_None) : PyDict_New(), *out = NULL;
    for (Py_ssize_t i = 0; given != NULL && i < nargs; i++) {
        PyTuple_SET_ITEM(given, i, Py_NewRef(args[i]));
    }
    Py_ssize_t n = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames), i = 0;
    while (named != NULL && i < n && PyDict_SetItem(named, PyTuple_GET_ITEM(kwnames, i), args[nargs + i]) == 0) {
        i++;
    }
    if (given != NULL && named != NULL && i == n) {
        PyObject *all[] = {NULL, tap->original, tap->op, tap->how, given, named};
        out = PyObject_Vectorcall(tap->heard, all + 1, 5 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    }
    Py_XDECREF(given);
    Py_XDECREF(named);
    return out;
}

static PyObject *
Tap_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Tap *tap = (Tap *)callable;
    if (tap->heard == Py_None) {
        return PyObject_Vectorcall(tap->slow, args, nargsf, kwnames);
    }
    if (!nobody(tap->awake) || PyVectorcall_NARGS(nargsf) == 0 || !is_plain(args[0])) {
        return Tap_heard(tap, args, nargsf, kwnames);
    }
    return tap->pass(tap->original, args, nargsf, kwnames);
}

static PyObject *
Tap_get(PyObject *self, PyObject *obj, PyObject *Py_UNUSED(type))
{
    return obj == NULL || obj == Py_None ? Py_NewRef(self) : PyMethod_New(self, obj);
}

static Py_hash_t
Tap_hash(PyObject *self)
{
    return PyObject_Hash(((Tap *)self)->original);
}

static PyObject *
Tap_compare(PyObject *self, PyObject *other, int op)
{
    if (op != Py_EQ && op != Py_NE) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    PyObject *theirs = Py_TYPE(other) == &TapType ? ((Tap *)other)->original : other;
    return PyObject_RichCompare(((Tap *)self)->original, theirs, op);
}

static PyObject *
Tap_repr(PyObject *self)
{
    return PyObject_Repr(((Tap *)self)->original);
}

static PyObject *
Tap_reduce(PyObject *self, PyObject *protocol)
{
    Tap *tap = (Tap *)self;
    if (!PyFunction_Check(tap->original)) {
        return PyObject_CallMethod(tap->original, "__reduce_ex__", "O", protocol);
    }
    /* Python pickles a function by its name, under which there is this tap, or the original once the scope is left. */
    PyObject *look_up = PyDict_GetItemString(PyEval_GetBuiltins(), "getattr");
    return Py_BuildValue("O(OO)", look_up, plain_classes[0], tap->op);
}

static PyObject *
Tap_copy(PyObject *self, PyObject *Py_UNUSED(memo))
{
    return Py_NewRef(self);
}

/* What the original has and a tap has not: `__objclass__`, `__text_signature__`. */
static PyObject *
Tap_getattr(PyObject *self, PyObject *name)
{
    PyObject *found = PyObject_GenericGetAttr(self, name);
    if (found == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        found = PyObject_GetAttr(((Tap *)self)->original, name);
    }
    return found;
}

static PyMethodDef Tap_methods[] = {
    {"__reduce_ex__", Tap_reduce, METH_O, NULL},
    {"__copy__", Tap_copy, METH_NOARGS, NULL},
    {"__deepcopy__", Tap_copy, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

/* A tap is made once, for good: the collector need not look at it. */
static void
Tap_dealloc(PyObject *self)
{
    Tap *tap = (Tap *)self;
    if (tap->weakrefs != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    PyObject *owned[] = {tap->original, tap->slow, tap->awake, tap->overridden, tap->heard, tap->op, tap->how, tap->dict};
    drop_all(owned, sizeof(owned) / sizeof(*owned));
    Py_TYPE(tap)->tp_free(self);
}

static PyObject *
Tap_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *original, *slow, *heard, *op, *how, *awake, *overridden;
    if (!PyArg_ParseTuple(args, "OOOUUO!O", &original, &slow, &heard, &op, &how, &PySet_Type, &awake, &overridden)) {
        return NULL;
    }
    Tap *tap = (Tap *)type->tp_alloc(type, 0);
    if (tap != NULL) {
        tap->call = Tap_call;
        tap->original = Py_NewRef(original);
        tap->pass = way_to(original);
        tap->slow = Py_NewRef(slow);
        tap->heard = Py_NewRef(heard);
        tap->op = Py_NewRef(op);
        tap->how = Py_NewRef(how);
        tap->awake = Py_NewRef(awake);
        tap->overridden = Py_NewRef(overridden);
    }
    return (PyObject *)tap;
}

static PyGetSetDef Tap_attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject TapType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "gradmend.capture.native._edge.Tap",
    .tp_doc = "A method of torch.Tensor that passes its call on while nobody listens.",
    .tp_basicsize = sizeof(Tap),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(Tap, call),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = Tap_get,
    .tp_dealloc = Tap_dealloc,
    .tp_new = Tap_new,
    .tp_methods = Tap_methods,
    .tp_getset = Tap_attributes,
    .tp_hash = Tap_hash,
    .tp_richcompare = Tap_compare,
    .tp_repr = Tap_repr,
    .tp_weaklistoffset = offsetof(Tap, weakrefs),
    .tp_dictoffset = offsetof(Tap, dict),
    .tp_getattro = Tap_getattr,
    .tp_setattro = PyObject_GenericSetAttr,
};
