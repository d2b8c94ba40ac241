/* Which Saves live, in the order they came: rolls.py has the same in Python. */

#include "ledger.h"

#include <stddef.h>

void
roll_leave(Entry *entry)
{
    Roll *roll = entry->roll;
    if (roll == NULL) {
        return;
    }
    *(entry->before == NULL ? &roll->first : &entry->before->after) = entry->after;
    *(entry->after == NULL ? &roll->last : &entry->after->before) = entry->before;
    roll->n--;
    entry->roll = NULL;
    entry->before = entry->after = NULL;
}

/* At the end of this one, and off the one where it was. */
void
roll_add(Roll *roll, Entry *entry)
{
    roll_leave(entry);
    entry->roll = roll;
    entry->before = roll->last;
    *(roll->last == NULL ? &roll->first : &roll->last->after) = entry;
    roll->last = entry;
    roll->n++;
}

/* The first of it, as a new reference; NULL when there is none. */
Entry *
roll_first(Roll *roll)
{
    while (roll->first != NULL && Py_REFCNT(roll->first) == 0) {
        roll_leave(roll->first); /* it is being freed, which CPython may put off */
    }
    return (Entry *)Py_XNewRef((PyObject *)roll->first);
}

static PyObject *
entries_on(Roll *roll)
{
    PyObject *found = PyList_New(0);
    for (Entry *entry = roll->first; found != NULL && entry != NULL; entry = entry->after) {
        if (Py_REFCNT(entry) && PyList_Append(found, (PyObject *)entry) < 0) {
            Py_CLEAR(found);
        }
    }
    return found;
}

static PyObject *
Roll_iter(Roll *roll)
{
    PyObject *found = entries_on(roll), *all = found == NULL ? NULL : PyObject_GetIter(found);
    Py_XDECREF(found);
    return all;
}

static Py_ssize_t
Roll_length(Roll *roll)
{
    return roll->n;
}

static PyObject *
Roll_add(Roll *roll, PyObject *entry)
{
    if (!PyObject_TypeCheck(entry, EntryType)) {
        PyErr_Format(PyExc_TypeError, "not a Save: %R", entry);
        return NULL;
    }
    roll_add(roll, (Entry *)entry);
    Py_RETURN_NONE;
}

static void
Roll_dealloc(Roll *roll)
{
    while (roll->first != NULL) {
        roll_leave(roll->first);
    }
    if (roll->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)roll);
    }
    Py_TYPE(roll)->tp_free((PyObject *)roll);
}

static PyMethodDef Roll_methods[] = {
    {"add", (PyCFunction)Roll_add, METH_O, "Put a Save at its end, and take it off the roll where it was."},
    {NULL},
};

static PySequenceMethods Roll_sequence = {.sq_length = (lenfunc)Roll_length};

PyTypeObject RollType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "gradmend.capture._fast.Roll",
    .tp_doc = "Living Saves, in the order they came; the dead drop out by themselves.",
    .tp_basicsize = sizeof(Roll),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)Roll_dealloc,
    .tp_iter = (getiterfunc)Roll_iter,
    .tp_as_sequence = &Roll_sequence,
    .tp_methods = Roll_methods,
    .tp_weaklistoffset = offsetof(Roll, weakrefs),
};
