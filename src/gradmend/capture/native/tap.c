/* A method of torch.Tensor, as taps/wrappers.py makes it in Python: while nobody listens it passes its call on, while
   only the recorder does it leaves a record, and else it calls the tap in Python. */

#include "native.h"

#include <stddef.h>

static PyObject *word_listeners;

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

PyTypeObject TapType = {
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

int
tap_ready(void)
{
    word_listeners = PyUnicode_InternFromString("listeners");
    return word_listeners == NULL ? -1 : PyType_Ready(&TapType);
}
