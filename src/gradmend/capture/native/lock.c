/* A lock that its thread may take again, as threading.RLock, which costs four times as much from here. */

#include "ledger.h"

int
lock_take(Lock *self, int wait)
{
    unsigned long me = PyThread_get_thread_ident();
    if (self->depth && self->owner == me) {
        self->depth++;
        return 1;
    }
    if (PyThread_acquire_lock(self->lock, NOWAIT_LOCK) != PY_LOCK_ACQUIRED) {
        if (!wait) {
            return 0;
        }
        Py_BEGIN_ALLOW_THREADS
        PyThread_acquire_lock(self->lock, WAIT_LOCK);
        Py_END_ALLOW_THREADS
    }
    self->owner = me;
    self->depth = 1;
    return 1;
}

void
lock_release(Lock *self)
{
    if (--self->depth == 0) {
        PyThread_release_lock(self->lock);
    }
}

static PyObject *
Lock_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs))
{
    Lock *self = (Lock *)type->tp_alloc(type, 0);
    if (self != NULL && (self->lock = PyThread_allocate_lock()) == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void
Lock_dealloc(Lock *self)
{
    if (self->lock != NULL) {
        PyThread_free_lock(self->lock);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
Lock_enter(Lock *self, PyObject *Py_UNUSED(ignored))
{
    lock_take(self, 1);
    Py_RETURN_TRUE;
}

static PyObject *
Lock_exit(Lock *self, PyObject *Py_UNUSED(args))
{
    if (self->depth == 0 || self->owner != PyThread_get_thread_ident()) {
        PyErr_SetString(PyExc_RuntimeError, "another thread has the lock, or none");
        return NULL;
    }
    lock_release(self);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"__enter__", (PyCFunction)Lock_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)Lock_exit, METH_VARARGS, NULL},
    {NULL},
};

PyTypeObject LockType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "gradmend.capture._fast.Lock",
    .tp_doc = "A lock that its thread may take again.",
    .tp_basicsize = sizeof(Lock),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Lock_new,
    .tp_dealloc = (destructor)Lock_dealloc,
    .tp_methods = methods,
};
