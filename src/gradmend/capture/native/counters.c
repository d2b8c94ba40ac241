/* Version counters, and whose they are: Counter and Timeline._counter_of() in entries.py have the same in Python. */

#include "ledger.h"

/* What Python hands over once. */
static PyObject *set_version, *base_property, *CounterClass;

int
version_at(PyObject *tensor, long long *version)
{
    return number(version_of(tensor), version);
}

static int
step_to(PyObject *tensor, long long version)
{
    PyObject *tensors = PyTuple_Pack(1, tensor), *versions = Py_BuildValue("(L)", version), *none = NULL;
    if (tensors != NULL && versions != NULL) {
        none = PyObject_CallFunctionObjArgs(set_version, tensors, versions, NULL);
    }
    Py_XDECREF(tensors);
    Py_XDECREF(versions);
    Py_XDECREF(none);
    return none == NULL ? -1 : 0;
}

/* PyTorch does not tell which counter a tensor has; a step on one that shows on the other does. */
static int
carried_by(Counter *counter, PyObject *tensor)
{
    long long here, there;
    if (version_at(counter->carrier, &here) < 0 || version_at(tensor, &there) < 0) {
        return -1;
    }
    if (here != there) {
        return 0;
    }
    if (step_to(counter->carrier, here + 1) < 0 || version_at(tensor, &there) < 0 || step_to(counter->carrier, here) < 0)
    {
        return -1;
    }
    return there == here + 1;
}

/* The tensor that a Save is a view of, or is: all that have it share its counter. NULL without an error: it is gone. */
static PyObject *
base_of(Entry *entry)
{
    PyObject *saved = alive(entry->original);
    if (saved == NULL) {
        return NULL;
    }
    if (!is_plain(saved)) {
        Py_DECREF(saved); /* of a class that would see us look */
        return NULL;
    }
    PyObject *base = get(base_property, saved);
    if (base == NULL || base != Py_None) {
        Py_DECREF(saved);
        return base;
    }
    Py_DECREF(base);
    return saved;
}

static int
has_base(Counter *counter, PyObject *base)
{
    PyObject *known = alive(counter->base);
    Py_XDECREF(known); /* the caller's reference keeps it, if it is that one */
    return known != NULL && known == base;
}

/* The counter of a Save of this timeline, borrowed. */
static Counter *
find_counter(Timeline *timeline, PyObject *handle, PyObject *base)
{
    for (Py_ssize_t i = 0; base != NULL && i < PyList_GET_SIZE(timeline->counters); i++) {
        Counter *counter = (Counter *)PyList_GET_ITEM(timeline->counters, i);
        if (has_base(counter, base)) {
            return counter;
        }
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(timeline->counters); i++) {
        Counter *counter = (Counter *)PyList_GET_ITEM(timeline->counters, i);
        int same = carried_by(counter, handle);
        if (same) {
            return same < 0 ? NULL : counter;
        }
    }
    PyObject *made = PyObject_CallOneArg(CounterClass, handle);
    if (made == NULL || PyList_Append(timeline->counters, made) < 0) {
        Py_XDECREF(made);
        return NULL;
    }
    Py_DECREF(made); /* the list has it */
    return (Counter *)made;
}

/* Which version counter a Save carries, borrowed: Timeline._counter_of(). */
Counter *
counter_of(Timeline *timeline, Entry *entry)
{
    PyObject *base = base_of(entry);
    if (base == NULL && PyErr_Occurred()) {
        return NULL;
    }
    Counter *counter = find_counter(timeline, entry->handle, base);
    if (counter != NULL && base != NULL && !has_base(counter, base)) {
        PyObject *ref = PyWeakref_NewRef(base, NULL);
        if (ref == NULL) {
            counter = NULL;
        }
        else {
            Py_XSETREF(counter->base, ref);
        }
    }
    Py_XDECREF(base);
    return counter;
}

int
uncredited(Entry *entry, long long now)
{
    if (missing(entry->counter)) {
        return now != entry->version;
    }
    return now - ((Counter *)entry->counter)->credited != entry->standing;
}

PyObject *
know_counters(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject **kept[] = {&set_version, &base_property, &CounterClass};
    return keep_all(args, kept, sizeof(kept) / sizeof(*kept));
}
