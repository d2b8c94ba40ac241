/* A function of a torch namespace (`torch.relu_`, `F.linear`), as taps/wrappers.py makes it in Python. It is a builtin
   like the one that it replaces, with that one's name, owner and documentation, and equal to it, so that whoever looks
   at it, looks it up in a table, pickles it or makes it an attribute of a class finds what torch made. */

#include "native.h"

#include <structmember.h>

static PyObject *word_out;

typedef struct {
    PyCFunctionObject base;
    PyObject *original;
    PyObject *slow;       /* the tap in Python, for when somebody listens */
    PyObject *awake;      /* the set of those who do */
} Function;

/* One that writes its arguments. */
static PyObject *
writes(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Function *tap = (Function *)callable;
    return PyObject_Vectorcall(nobody(tap->awake) ? tap->original : tap->slow, args, nargsf, kwnames);
}

/* Whether it is given an `out`. */
static int
has_out(PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kwnames); i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        if (name == word_out || PyUnicode_Compare(name, word_out) == 0) {
            return args[n + i] != Py_None;
        }
    }
    return 0;
}

/* One that writes only what it is given as `out`. */
static PyObject *
makes(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Function *tap = (Function *)callable;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    int heard = kwnames != NULL && has_out(args, n, kwnames) && !nobody(tap->awake);
    return PyObject_Vectorcall(heard ? tap->slow : tap->original, args, nargsf, kwnames);
}

/* As Tap_dealloc(); what it has as a builtin goes as that of one. */
static void
Function_dealloc(PyObject *self)
{
    Function *tap = (Function *)self;
    PyObject *owned[] = {tap->original, tap->slow, tap->awake};
    PyObject_GC_UnTrack(tap);
    drop_all(owned, sizeof(owned) / sizeof(*owned));
    PyCFunction_Type.tp_dealloc(self);
}

static PyObject *
Function_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *original, *slow, *awake, *home;
    int writing;
    if (!PyArg_ParseTuple(args, "O!OO!Op", &PyCFunction_Type, &original, &slow, &PySet_Type, &awake, &home,
                          &writing))
    {
        return NULL;
    }
    PyCFunctionObject *like = (PyCFunctionObject *)original;
    if (PyCFunction_GET_FLAGS(original) & METH_METHOD) {
        PyErr_SetString(PyExc_TypeError, "a builtin that knows its class can't be stood for");
        return NULL;
    }
    Function *tap = (Function *)type->tp_alloc(type, 0);
    if (tap != NULL) {
        tap->base.m_ml = like->m_ml;
        tap->base.m_self = Py_XNewRef(like->m_self);
        /* A graph that outlives the scope writes it down by its module: torch would search for one that has this object. */
        tap->base.m_module = Py_NewRef(like->m_module == NULL || like->m_module == Py_None ? home : like->m_module);
        tap->base.vectorcall = writing ? writes : makes;
        tap->original = Py_NewRef(original);
        tap->slow = Py_NewRef(slow);
        tap->awake = Py_NewRef(awake);
    }
    return (PyObject *)tap;
}

static PyObject *
Function_doc(PyObject *self, void *Py_UNUSED(closure))
{
    return PyObject_GetAttrString(((Function *)self)->original, "__doc__");
}

/* As a function copies: a copy by name may be torch's own. */
static PyObject *
Function_copy(PyObject *self, PyObject *Py_UNUSED(memo))
{
    return Py_NewRef(self);
}

static PyMethodDef Function_methods[] = {
    {"__copy__", Function_copy, METH_NOARGS, NULL},
    {"__deepcopy__", Function_copy, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef Function_attributes[] = {
    {"__doc__", Function_doc, NULL, NULL, NULL}, /* a type without a text of its own would say None */
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef Function_members[] = {
    {"__gradmend_original__", T_OBJECT, offsetof(Function, original), READONLY, "What torch has under this name."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject FunctionType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "gradmend.capture.native._edge.Function",
    .tp_basicsize = sizeof(Function),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(PyCFunctionObject, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_dealloc = Function_dealloc,
    .tp_new = Function_new,
    .tp_methods = Function_methods,
    .tp_members = Function_members,
    .tp_getset = Function_attributes,
};

int
functions_ready(void)
{
    if (word_out == NULL && (word_out = PyUnicode_InternFromString("out")) == NULL) {
        return -1;
    }
    FunctionType.tp_base = &PyCFunction_Type; /* no constant for every compiler */
    return PyType_Ready(&FunctionType);
}
