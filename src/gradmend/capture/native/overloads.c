/* The call of `torch.ops.aten.add_` and its like, as taps/wrappers.py makes it in Python: an op that is known not to
   write has its call passed on, and so has each while nobody listens. torch calls some itself in every step. */

#include "native.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *original; /* the class's own */
    PyObject *slow;     /* the tap in Python */
    PyObject *awake;    /* the set of those who listen */
    PyObject *known;    /* id of an op -> (the op, what it writes or None) */
} Overloads;

/* Whether it is known to write nothing; -1 on an error. */
static int
harmless(PyObject *known, PyObject *op)
{
    PyObject *id = PyLong_FromVoidPtr(op);
    PyObject *found = id == NULL ? NULL : PyDict_GetItemWithError(known, id);
    Py_XDECREF(id);
    if (found == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    return PyTuple_Check(found) && PyTuple_GET_SIZE(found) == 2 && PyTuple_GET_ITEM(found, 1) == Py_None;
}

static PyObject *
Overloads_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Overloads *tap = (Overloads *)callable;
    int pass = PySet_GET_SIZE(tap->awake) == 0;
    if (!pass && PyVectorcall_NARGS(nargsf) > 0 && (pass = harmless(tap->known, args[0])) < 0) {
        return NULL;
    }
    return PyObject_Vectorcall(pass ? tap->original : tap->slow, args, nargsf, kwnames);
}

static PyObject *
Overloads_get(PyObject *self, PyObject *obj, PyObject *Py_UNUSED(type))
{
    if (obj == NULL || obj == Py_None) {
        return Py_NewRef(((Overloads *)self)->slow); /* of the class: inspect and others expect a function */
    }
    return PyMethod_New(self, obj);
}

static int
Overloads_traverse(PyObject *self, visitproc visit, void *arg)
{
    Overloads *tap = (Overloads *)self;
    Py_VISIT(tap->original);
    Py_VISIT(tap->slow);
    Py_VISIT(tap->awake);
    Py_VISIT(tap->known);
    return 0;
}

static int
Overloads_clear(PyObject *self)
{
    Overloads *tap = (Overloads *)self;
    Py_CLEAR(tap->original);
    Py_CLEAR(tap->slow);
    Py_CLEAR(tap->awake);
    Py_CLEAR(tap->known);
    return 0;
}

static void
Overloads_dealloc(PyObject *self)
{
    Overloads *tap = (Overloads *)self;
    PyObject_GC_UnTrack(tap);
    Overloads_clear(self);
    Py_TYPE(tap)->tp_free((PyObject *)tap);
}

static PyObject *
Overloads_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *original, *slow, *awake, *known;
    if (!PyArg_ParseTuple(args, "OOO!O!", &original, &slow, &PySet_Type, &awake, &PyDict_Type, &known)) {
        return NULL;
    }
    Overloads *tap = (Overloads *)type->tp_alloc(type, 0);
    if (tap != NULL) {
        tap->call = Overloads_call;
        tap->original = Py_NewRef(original);
        tap->slow = Py_NewRef(slow);
        tap->awake = Py_NewRef(awake);
        tap->known = Py_NewRef(known);
    }
    return (PyObject *)tap;
}

PyTypeObject OverloadsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "gradmend.capture.native._edge.Overloads",
    .tp_doc = "The __call__ of torch.ops' classes, which passes on what writes nothing.",
    .tp_basicsize = sizeof(Overloads),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(Overloads, call),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = Overloads_get,
    .tp_traverse = Overloads_traverse,
    .tp_clear = Overloads_clear,
    .tp_dealloc = Overloads_dealloc,
    .tp_new = Overloads_new,
};
