/* A method of torch.Tensor, as taps/wrappers.py makes it in Python: while nobody listens it passes its call on, while
   only the recorder does it leaves a record, a plain Write it enters into the ledger, and else it calls the tap in
   Python. */

#include "ledger.h"

#include <stddef.h>

/* What the ledger has to see of a method's call. */
enum { NOTHING_PLAIN, FIRST_ARGUMENT, ITEM };

static PyObject *word_listeners, *word_saves;
/* What Python hands over once. */
static Ledger *ledger;
static Edits *edits;
static PyTypeObject *Tensor;
static PyObject *requires_grad, *is_leaf, *is_view, *grad_mode;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *awake;      /* the set of those who listen */
    vectorcallfunc pass;  /* how to call ... */
    PyObject *original;   /* torch's own */
    PyObject *slow;       /* the tap in Python, for when somebody listens */
    PyObject *overridden; /* whether a mode does */
    PyObject *told;       /* the recorder's ear in Python */
    PyObject *op, *how;   /* for the record */
    int writes;           /* of the enum */
    PyObject *dict, *weakrefs;
} Tap;

/* Whether edits.before() would find nothing to watch, as nearly always: autograd sees the write itself, or no graph
   lies there. */
static int
no_edit(PyObject *tensor, int grad)
{
    if (!edits->on) {
        return 1;
    }
    int tracked = truth(get(requires_grad, tensor));
    if (tracked < 0 || PyList_GET_SIZE(edits->handed)) {
        return tracked < 0 ? -1 : 0;
    }
    if (tracked && grad) {
        return 1;
    }
    int view = truth(PyObject_CallOneArg(is_view, tensor));
    if (view || (tracked ? PyList_GET_SIZE(edits->inputs) : PyDict_GET_SIZE(edits->aliases))) {
        return view < 0 ? -1 : 0;
    }
    return tracked ? truth(get(is_leaf, tensor)) : 1;
}

/* Whether an argument lies in the memory of the target: `x.mul_(x)`, `h[1] *= h[0]`. */
static int
aliased(PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *home = NULL;
    int found = 0;
    for (Py_ssize_t i = 1; i < nargs && !found; i++) {
        if (!PyObject_TypeCheck(args[i], Tensor)) {
            continue;
        }
        if ((found = truth(get(requires_grad, args[i]))) <= 0) {
            continue;
        }
        PyObject *there = key_of(args[i]);
        if (home == NULL && there != NULL) {
            home = key_of(args[0]);
        }
        found = home == NULL || there == NULL ? -1 : PyObject_RichCompareBool(home, there, Py_EQ);
        Py_XDECREF(there);
    }
    Py_XDECREF(home);
    return found;
}

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
way_to(PyObject *original, int writes)
{
    if (Py_IS_TYPE(original, &PyMethodDescr_Type)) {
        return PyVectorcall_Function(original);
    }
    return writes == ITEM && Py_IS_TYPE(original, &PyWrapperDescr_Type) ? set_item : PyObject_Vectorcall;
}

/* The ledger's side of a call. NULL without an error: Python must see it. */
static PyObject *
Tap_entered(Tap *tap, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    int item = tap->writes == ITEM, saves = PySet_Contains(tap->awake, word_saves);
    if (item && (nargs != 3 || kwnames != NULL)) {
        return NULL;
    }
    int grad = truth(PyObject_CallNoArgs(grad_mode));
    if (grad < 0 || no_edit(args[0], grad) != 1 || (!item && grad && nargs > 1 && aliased(args, nargs) != 0)) {
        PyErr_Clear();
        return NULL;
    }
    if (!saves) {
        return tap->pass(tap->original, args, nargsf, kwnames);
    }
    Begun begun;
    int begins = write_begins(ledger, &begun, tap->op, args[0], item ? args[1] : NULL);
    if (begins <= 0) {
        return NULL;
    }
    PyObject *out = tap->pass(tap->original, args, nargsf, kwnames);
    if (write_ended(ledger, &begun) < 0) {
        Py_CLEAR(out);
    }
    return out;
}

/* The thread that passes a call on. A mode is told of it by the name that torch looks up then: see Tap_get(). To ask
   before each call whether there is a mode would cost several times what the rest of the tap does. */
static PyThreadState *passing;

/* Somebody listens, or might override. */
RARE static PyObject *
Tap_heard(Tap *tap, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    PyObject *out = NULL;
    if (PyVectorcall_NARGS(nargsf) && is_plain(args[0]) && PySet_GET_SIZE(tap->awake)) {
        int heard = PySet_Contains(tap->awake, word_listeners);
        int recorded = heard && PySet_GET_SIZE(tap->awake) == 1 && ring != NULL && tap->writes != ITEM;
        int entered = !heard && tap->writes != NOTHING_PLAIN && ledger != NULL;
        int over = recorded || entered ? truth(PyObject_CallOneArg(tap->overridden, args[0])) : 1;
        if (over == 0) {
            out = recorded ? call_recorded(tap->original, tap->told, tap->op, tap->how, args, nargsf, kwnames)
                           : Tap_entered(tap, args, nargsf, kwnames);
        }
    }
    return out != NULL || PyErr_Occurred() ? out : PyObject_Vectorcall(tap->slow, args, nargsf, kwnames);
}

static PyObject *
Tap_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Tap *tap = (Tap *)callable;
    if (PySet_GET_SIZE(tap->awake) || PyVectorcall_NARGS(nargsf) == 0 || !is_plain(args[0])) {
        return Tap_heard(tap, args, nargsf, kwnames);
    }
    passing = PyThreadState_Get();
    PyObject *out = tap->pass(tap->original, args, nargsf, kwnames);
    passing = NULL;
    return out;
}

/* `torch.Tensor.add_`: inspect and others expect a function. Torch itself looks it up too when a call meets a mode, and
   a mode knows the original: the first look while a call is passed on is torch's. */
static PyObject *
Tap_of_class(Tap *tap)
{
    if (passing == NULL || passing != PyThreadState_Get()) {
        return Py_NewRef(tap->slow);
    }
    passing = NULL;
    int over = truth(PyObject_CallOneArg(tap->overridden, Py_None));
    return over < 0 ? NULL : Py_NewRef(over ? tap->original : tap->slow);
}

static PyObject *
Tap_get(PyObject *self, PyObject *obj, PyObject *Py_UNUSED(type))
{
    return obj == NULL || obj == Py_None ? Tap_of_class((Tap *)self) : PyMethod_New(self, obj);
}

static int
Tap_traverse(Tap *tap, visitproc visit, void *arg)
{
    Py_VISIT(tap->original);
    Py_VISIT(tap->slow);
    Py_VISIT(tap->awake);
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
    PyObject *original, *slow, *op, *how, *awake, *overridden, *told;
    int writes;
    if (!PyArg_ParseTuple(args, "OOUUO!OOi", &original, &slow, &op, &how, &PySet_Type, &awake, &overridden, &told,
                          &writes))
    {
        return NULL;
    }
    Tap *tap = (Tap *)type->tp_alloc(type, 0);
    if (tap != NULL) {
        tap->call = Tap_call;
        tap->original = Py_NewRef(original);
        tap->pass = way_to(original, writes);
        tap->slow = Py_NewRef(slow);
        tap->op = Py_NewRef(op);
        tap->how = Py_NewRef(how);
        tap->awake = Py_NewRef(awake);
        tap->overridden = Py_NewRef(overridden);
        tap->told = Py_NewRef(told);
        tap->writes = writes;
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

PyObject *
know_taps(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *entries, *state, *kind, *given[4];
    PyObject **kept[4] = {&requires_grad, &is_leaf, &is_view, &grad_mode};
    if (!PyArg_ParseTuple(args, "O!O!O!OOOO", LedgerType, &entries, &PyType_Type, &kind, EditsType, &state, given,
                          given + 1, given + 2, given + 3))
    {
        return NULL;
    }
    for (int i = 0; i < 4; i++) {
        Py_XSETREF(*kept[i], Py_NewRef(given[i]));
    }
    Py_XSETREF(Tensor, (PyTypeObject *)Py_NewRef(kind));
    Py_XSETREF(ledger, (Ledger *)Py_NewRef(entries));
    Py_XSETREF(edits, (Edits *)Py_NewRef(state));
    Py_RETURN_NONE;
}

int
tap_ready(void)
{
    Name names[] = {{&word_listeners, "listeners"}, {&word_saves, "saves"}};
    if (INTERN(names) < 0) {
        return -1;
    }
    return PyType_Ready(&TapType);
}
