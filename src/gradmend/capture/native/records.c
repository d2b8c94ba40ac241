/* Where a written tensor lies, and the record of a call that wrote: Place and Recorded in recorder.py are the same in
   Python. A record is one block of memory, with no Python object for each number in it: thousands are kept, and those
   of a training loop come while its own data should be in the caches. */

#include "native.h"

#include <stddef.h>

/* TensorBase's own: the names on torch.Tensor may be tapped. */
static PyObject *is_contiguous, *data_ptr, *nbytes, *version, *gradient;

PyObject *
version_of(PyObject *tensor)
{
    return get(version, tensor);
}

/* As attributes tell it. */
static int
spot_by_attributes(PyObject *tensor, Spot *spot)
{
    int row = is_contiguous == NULL ? 0 : truth(PyObject_CallOneArg(is_contiguous, tensor));
    if (row <= 0) {
        return row;
    }
    PyObject *address = PyObject_CallOneArg(data_ptr, tensor);
    if (address == NULL) {
        return -1;
    }
    spot->address = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    return PyErr_Occurred() || number(get(nbytes, tensor), &spot->bytes) < 0 ? -1 : 1;
}

/* 1: found; 0: it has gaps, and Python must look; -1: an error. */
static int
spot_of(PyObject *tensor, Spot *spot)
{
    DLTensor facts;
    int found = 1;
    if (version != NULL && facts_of(tensor, &facts)) {
        if (!in_a_row(&facts, &spot->bytes)) {
            return 0;
        }
        spot->address = (char *)facts.data + facts.byte_offset;
        spot->bytes *= item_of(&facts);
    }
    else {
        found = spot_by_attributes(tensor, spot);
    }
    return found == 1 && number(version_of(tensor), &spot->version) < 0 ? -1 : found;
}

static PyObject *
place_of(const Spot *spot)
{
    return Py_BuildValue("(NLOL)", PyLong_FromVoidPtr(spot->address), spot->bytes, Py_None, spot->version);
}

/* (address, bytes, None, version) of a tensor without gaps; None for any other. */
PyObject *
place(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    Spot spot;
    int found = spot_of(tensor, &spot);
    if (found == 1) {
        return place_of(&spot);
    }
    return found < 0 ? NULL : Py_NewRef(Py_None);
}

/* Whether an optimizer has something to step it by. */
static int
has_gradient(PyObject *param)
{
    PyObject *grad = get(gradient, param);
    Py_XDECREF(grad);
    return grad == NULL ? -1 : grad != Py_None;
}

/* The places of the parameters that have a gradient, as a list; None where one has gaps. */
PyObject *
places(PyObject *Py_UNUSED(module), PyObject *params)
{
    PyObject *given = PySequence_List(params), *found = given == NULL || gradient == NULL ? NULL : PyList_New(0);
    int done = found == NULL ? -1 : 1;
    for (Py_ssize_t i = 0; done == 1 && i < PyList_GET_SIZE(given); i++) {
        PyObject *param = PyList_GET_ITEM(given, i);
        int stepped = has_gradient(param);
        PyObject *where = stepped == 1 ? place(NULL, param) : NULL;
        if (stepped) {
            done = where == NULL || (where != Py_None && PyList_Append(found, where) < 0) ? -1 : where != Py_None;
        }
        Py_XDECREF(where);
    }
    Py_XDECREF(given);
    if (done != 1) {
        Py_XDECREF(found);
        return done < 0 && PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    return found;
}

typedef struct {
    PyObject_VAR_HEAD
    PyObject *op, *how, *raw;
    long long tick;
    Py_ssize_t room;
    Spot spots[1];
} Recorded;

PyObject *
record_of(PyObject *op, PyObject *how, Py_ssize_t room)
{
    Recorded *record = PyObject_NewVar(Recorded, &RecordedType, room);
    if (record != NULL) {
        record->op = Py_NewRef(op);
        record->how = Py_NewRef(how);
        record->raw = NULL;
        record->room = room;
        Py_SET_SIZE(record, 0);
    }
    return (PyObject *)record;
}

int
record_adds(PyObject *self, PyObject *tensor)
{
    Recorded *record = (Recorded *)self;
    Py_ssize_t at = Py_SIZE(record);
    int found = at < record->room ? spot_of(tensor, &record->spots[at]) : 0;
    if (found == 1) {
        Py_SET_SIZE(record, at + 1);
    }
    return found;
}

int
record_steps(PyObject *self, PyObject *params)
{
    int found = gradient != NULL;
    for (Py_ssize_t i = 0; found == 1 && i < PyList_GET_SIZE(params); i++) {
        PyObject *param = PyList_GET_ITEM(params, i);
        int stepped = is_plain(param) ? has_gradient(param) : -2;
        if (stepped) {
            found = stepped == 1 ? record_adds(self, param) : stepped == -2 ? 0 : -1;
        }
    }
    return found;
}

/* Here and now, and into the ring that `append` is of: 0, or -1 on an error. */
int
record_ends(PyObject *self, PyObject *append, PyObject *clock)
{
    Recorded *record = (Recorded *)self;
    PyObject *none = NULL;
    if (number(PyIter_Next(clock), &record->tick) == 0 && (record->raw = walk(1)) != NULL) {
        none = PyObject_CallOneArg(append, self);
        Py_XDECREF(none);
    }
    return none == NULL ? -1 : 0;
}

static PyObject *
Recorded_iter(Recorded *record)
{
    PyObject *tensors = PyList_New(Py_SIZE(record));
    for (Py_ssize_t i = 0; tensors != NULL && i < Py_SIZE(record); i++) {
        PyObject *where = place_of(&record->spots[i]);
        if (where == NULL) {
            Py_CLEAR(tensors);
            break;
        }
        PyList_SET_ITEM(tensors, i, where);
    }
    PyObject *all = tensors == NULL ? NULL
                                    : Py_BuildValue("(LOOON)", record->tick, record->op, record->how,
                                                    record->raw == NULL ? Py_None : record->raw, tensors);
    PyObject *each = all == NULL ? NULL : PyObject_GetIter(all);
    Py_XDECREF(all);
    return each;
}

static void
Recorded_dealloc(Recorded *record)
{
    Py_DECREF(record->op);
    Py_DECREF(record->how);
    Py_XDECREF(record->raw);
    PyObject_Free(record);
}

/* Strings and numbers are all it holds: nothing for the collector. */
PyTypeObject RecordedType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "gradmend.capture._fast.Recorded",
    .tp_doc = "One call that wrote: the fields of recorder.Recorded, in a row.",
    .tp_basicsize = offsetof(Recorded, spots),
    .tp_itemsize = sizeof(Spot),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_iter = (getiterfunc)Recorded_iter,
    .tp_dealloc = (destructor)Recorded_dealloc,
};

PyObject *
know_tensors(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given[5], **kept[5] = {&is_contiguous, &data_ptr, &nbytes, &version, &gradient};
    if (!PyArg_ParseTuple(args, "OOOOO", given, given + 1, given + 2, given + 3, given + 4)) {
        return NULL;
    }
    for (int i = 0; i < 5; i++) {
        if (i > 1 && Py_TYPE(given[i])->tp_descr_get == NULL) {
            PyErr_SetString(PyExc_TypeError, "nbytes, _version and grad come as properties");
            return NULL;
        }
    }
    for (int i = 0; i < 5; i++) {
        Py_XSETREF(*kept[i], Py_NewRef(given[i]));
    }
    Py_RETURN_NONE;
}
