/* The record of a backward call, as a struct: BackwardCall in backwards.py has the same attributes, and says what they
   mean. It holds numbers, and tuples and a dict of them: nothing for the collector, which neither counts nor visits it. */

#include "native.h"

#include <stddef.h>
#include <structmember.h>

static PyObject *word_running;
static PyTypeObject *BackwardCall;
Py_ssize_t keeping_nodes;

static PyObject *
Call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"tick", "raw", "roots", "retain", "thread", NULL};
    long long tick;
    PyObject *raw, *roots;
    int retain;
    unsigned long thread = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LOO!p|k", names, &tick, &raw, &PyTuple_Type, &roots, &retain,
                                     &thread))
    {
        return NULL;
    }
    Call *call = (Call *)type->tp_alloc(type, 0);
    if (call != NULL) {
        call->tick = tick;
        call->raw = Py_NewRef(raw);
        call->roots = Py_NewRef(roots);
        call->retain = (char)retain;
        call->thread = thread;
        call->outcome = Py_NewRef(word_running);
    }
    return (PyObject *)call;
}

Call *
call_of(int retain)
{
    Call *call = (Call *)BackwardCall->tp_alloc(BackwardCall, 0);
    if (call != NULL) {
        call->retain = (char)retain;
        call->thread = PyThread_get_thread_ident();
        call->outcome = Py_NewRef(word_running);
    }
    return call;
}

int
is_call(PyObject *one)
{
    return Py_IS_TYPE(one, BackwardCall);
}

void
forget_nodes(Call *call)
{
    if (call->visited != NULL) {
        keeping_nodes--;
        Py_CLEAR(call->visited);
    }
}

static void
Call_dealloc(Call *call)
{
    PyTypeObject *type = Py_TYPE(call);
    forget_nodes(call);
    Py_XDECREF(call->raw);
    Py_XDECREF(call->roots);
    Py_XDECREF(call->outcome);
    Py_XDECREF(call->seeds);
    type->tp_free((PyObject *)call);
    Py_DECREF(type);
}

static PyObject *
Call_roots(Call *call, void *Py_UNUSED(closure))
{
    if (call->roots == NULL && (call->roots = Py_BuildValue("(L)", call->root)) == NULL) {
        return NULL;
    }
    return Py_NewRef(call->roots);
}

PyObject *
nodes_of(Call *call)
{
    if (call->visited == NULL && (call->visited = PyDict_New()) != NULL) {
        keeping_nodes++;
    }
    return call->visited;
}

static PyObject *
Call_visited(Call *call, void *Py_UNUSED(closure))
{
    return Py_XNewRef(nodes_of(call));
}

static PyObject *
Call_seeds(Call *call, void *Py_UNUSED(closure))
{
    return call->seeds == NULL ? PyTuple_New(0) : Py_NewRef(call->seeds);
}

static int
Call_set_seeds(Call *call, PyObject *seeds, void *Py_UNUSED(closure))
{
    Py_XSETREF(call->seeds, Py_XNewRef(seeds));
    return 0;
}

static PyMemberDef Call_members[] = {
    {"tick", T_LONGLONG, offsetof(Call, tick), READONLY, NULL},
    {"raw", T_OBJECT, offsetof(Call, raw), READONLY, NULL},
    {"retain", T_BOOL, offsetof(Call, retain), READONLY, NULL},
    {"thread", T_ULONG, offsetof(Call, thread), READONLY, NULL},
    {"outcome", T_OBJECT, offsetof(Call, outcome), 0, NULL},
    {NULL},
};

static PyGetSetDef Call_attributes[] = {
    {"roots", (getter)Call_roots, NULL, NULL, NULL},
    {"visited", (getter)Call_visited, NULL, NULL, NULL},
    {"seeds", (getter)Call_seeds, (setter)Call_set_seeds, NULL, NULL},
    {NULL},
};

static PyType_Slot Call_slots[] = {
    {Py_tp_new, Call_new},
    {Py_tp_dealloc, Call_dealloc},
    {Py_tp_members, Call_members},
    {Py_tp_getset, Call_attributes},
    {0, NULL},
};

/* Python gives it what it works out from these: site and frame. */
static PyType_Spec Call_spec = {"gradmend.capture._fast.BackwardCall", sizeof(Call), 0, Py_TPFLAGS_DEFAULT, Call_slots};

int
calls_ready(PyObject *module)
{
    Name names[] = {{&word_running, "running"}};
    if (INTERN(names) < 0 || (BackwardCall = (PyTypeObject *)PyType_FromSpec(&Call_spec)) == NULL) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "BackwardCall", (PyObject *)BackwardCall);
}
