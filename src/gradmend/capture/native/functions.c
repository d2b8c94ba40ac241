/* A function of a torch namespace (`torch.relu_`, `F.linear`), as taps/wrappers.py makes it in Python. It is a builtin
   like the one that it stands for, with that one's name, owner and documentation, so that whoever looks at it, pickles
   it or makes it an attribute of a class finds what torch made. */

#include "ledger.h"

#include <stddef.h>
#include <structmember.h>

static PyObject *word_listeners, *word_out;

typedef struct {
    PyCFunctionObject base;
    PyObject *original;
    PyObject *slow;       /* the tap in Python, for when somebody listens */
    PyObject *awake;      /* the set of those who do */
    PyObject *overridden; /* whether one of the arguments, or a mode, does */
    PyObject *told;       /* the recorder's ear in Python */
    PyObject *edits;      /* the Edits, whose `on` is whether they are heard */
    PyObject *op, *how;   /* for the record */
    int first;            /* all it writes is its first argument */
    int uncounted;        /* it steps no counter, so that the recorder need not hear of it */
} Function;

/* Whether an argument overrides torch's functions, or a mode does; -1 on an error. */
static int
overrides(Function *tap, PyObject *const *args, Py_ssize_t n)
{
    return truth(PyObject_Vectorcall(tap->overridden, args, n, NULL));
}

/* Only the recorder listens, and compiled taps may leave their records in its ring. */
static int
only_recorded(Function *tap)
{
    return ring != NULL && PySet_GET_SIZE(tap->awake) == 1 && PySet_Contains(tap->awake, word_listeners) == 1;
}

static PyObject *
writes(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Function *tap = (Function *)callable;
    if (PySet_GET_SIZE(tap->awake) == 0) {
        return PyObject_Vectorcall(tap->original, args, nargsf, kwnames);
    }
    if (only_recorded(tap)) {
        if (tap->first && kwnames == NULL && PyVectorcall_NARGS(nargsf) > 0 && is_plain(args[0])) {
            int over = overrides(tap, args, 1);
            if (over <= 0) {
                return over < 0 ? NULL
                                : call_recorded(tap->original, tap->told, tap->op, tap->how, args, nargsf, NULL);
            }
        }
        if (tap->uncounted && !((Edits *)tap->edits)->on) {
            return PyObject_Vectorcall(tap->original, args, nargsf, kwnames);
        }
    }
    return PyObject_Vectorcall(tap->slow, args, nargsf, kwnames);
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

static PyObject *
makes(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Function *tap = (Function *)callable;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    if (kwnames == NULL || PySet_GET_SIZE(tap->awake) == 0 || !has_out(args, n, kwnames)) {
        int over = overrides(tap, args, n);
        if (over <= 0) {
            return over < 0 ? NULL : PyObject_Vectorcall(tap->original, args, nargsf, kwnames);
        }
    }
    return PyObject_Vectorcall(tap->slow, args, nargsf, kwnames);
}

/* Those of a Function that own a reference, in a row from `original` to `how`. */
static PyObject **
owned(Function *tap)
{
    return &tap->original;
}

#define OWNED 8

static int
Function_traverse(Function *tap, visitproc visit, void *arg)
{
    Py_VISIT(tap->base.m_self);
    Py_VISIT(tap->base.m_module);
    for (int i = 0; i < OWNED; i++) {
        Py_VISIT(owned(tap)[i]);
    }
    return 0;
}

static int
Function_clear(Function *tap)
{
    Py_CLEAR(tap->base.m_self);
    Py_CLEAR(tap->base.m_module);
    for (int i = 0; i < OWNED; i++) {
        Py_CLEAR(owned(tap)[i]);
    }
    return 0;
}

static void
Function_dealloc(Function *tap)
{
    PyObject_GC_UnTrack(tap);
    if (tap->base.m_weakreflist != NULL) {
        PyObject_ClearWeakRefs((PyObject *)tap);
    }
    Function_clear(tap);
    Py_TYPE(tap)->tp_free((PyObject *)tap);
}

static PyObject *
Function_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *original, *slow, *op, *how, *awake, *overridden, *told, *edits;
    int writing, first, uncounted;
    if (!PyArg_ParseTuple(args, "O!OUUO!OOO!ppp", &PyCFunction_Type, &original, &slow, &op, &how, &PySet_Type, &awake,
                          &overridden, &told, EditsType, &edits, &writing, &first, &uncounted))
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
        tap->base.m_module = Py_XNewRef(like->m_module);
        tap->base.vectorcall = writing ? writes : makes;
        tap->original = Py_NewRef(original);
        tap->slow = Py_NewRef(slow);
        tap->awake = Py_NewRef(awake);
        tap->overridden = Py_NewRef(overridden);
        tap->told = Py_NewRef(told);
        tap->edits = Py_NewRef(edits);
        tap->op = Py_NewRef(op);
        tap->how = Py_NewRef(how);
        tap->first = first;
        tap->uncounted = uncounted;
    }
    return (PyObject *)tap;
}

/* One is itself only: a builtin equals each that has its owner and its code, and tables of torch's functions would take
   a tap for its original. */
static Py_hash_t
Function_hash(PyObject *self)
{
    return PyBaseObject_Type.tp_hash(self);
}

static PyObject *
Function_compare(PyObject *self, PyObject *other, int op)
{
    if (op != Py_EQ && op != Py_NE) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    return PyBool_FromLong((self == other) == (op == Py_EQ));
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
    {NULL},
};

static PyGetSetDef Function_attributes[] = {
    {"__doc__", Function_doc}, /* a type without a text of its own would say None */
    {NULL},
};

static PyMemberDef Function_members[] = {
    {"__gradmend_original__", T_OBJECT, offsetof(Function, original), READONLY, "What torch has under this name."},
    {NULL},
};

PyTypeObject FunctionType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "gradmend.capture._fast.Function",
    .tp_basicsize = sizeof(Function),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(PyCFunctionObject, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_hash = Function_hash,
    .tp_richcompare = Function_compare,
    .tp_traverse = (traverseproc)Function_traverse,
    .tp_clear = (inquiry)Function_clear,
    .tp_dealloc = (destructor)Function_dealloc,
    .tp_new = Function_new,
    .tp_methods = Function_methods,
    .tp_members = Function_members,
    .tp_getset = Function_attributes,
};

int
functions_ready(void)
{
    Name names[] = {{&word_listeners, "listeners"}, {&word_out, "out"}};
    FunctionType.tp_base = &PyCFunction_Type; /* no constant for every compiler */
    return INTERN(names) < 0 ? -1 : PyType_Ready(&FunctionType);
}
