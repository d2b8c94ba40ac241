/* A tensor's bytes: where they lie, copied, put back and compared. */

#include "native.h"

/* torch's own methods and properties: the names on torch.Tensor may be tapped. */
static PyObject *is_contiguous, *data_ptr, *nbytes, *version, *gradient, *is_cpu, *storage_address, *storage_nbytes;

/* ---------------------------------------------------------------------------------------------------------- where */

typedef struct {
    void *address;
    long long bytes, version;
} Spot;

/* As attributes tell it. */
static int
spot_by_attributes(PyObject *tensor, Spot *spot)
{
    int row = truth(PyObject_CallOneArg(is_contiguous, tensor));
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

/* 1: found; 0: it has gaps; -1: an error. */
static int
spot_of(PyObject *tensor, Spot *spot)
{
    DLTensor facts;
    int found = 1;
    if (facts_of(tensor, &facts)) {
        if (!in_a_row(&facts, &spot->bytes)) {
            return 0;
        }
        spot->address = (char *)facts.data + facts.byte_offset;
        spot->bytes *= item_of(&facts);
    }
    else {
        found = spot_by_attributes(tensor, spot);
    }
    return found == 1 && number(get(version, tensor), &spot->version) < 0 ? -1 : found;
}

PyObject *
place(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    Spot spot;
    int found = spot_of(tensor, &spot);
    if (found == 1) {
        return Py_BuildValue("(NLOL)", PyLong_FromVoidPtr(spot.address), spot.bytes, Py_None, spot.version);
    }
    return found < 0 ? NULL : Py_NewRef(Py_None);
}

PyObject *
version_of(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    return get(version, tensor);
}

/* Of those that have a gradient. */
PyObject *
places(PyObject *module, PyObject *params)
{
    PyObject *given = PySequence_List(params), *found = given == NULL ? NULL : PyList_New(0);
    int done = found == NULL ? -1 : 1;
    for (Py_ssize_t i = 0; done == 1 && i < PyList_GET_SIZE(given); i++) {
        PyObject *param = PyList_GET_ITEM(given, i), *grad = get(gradient, param);
        if (grad == NULL) {
            done = -1;
        }
        else if (grad != Py_None) {
            PyObject *where = place(module, param);
            done = where == NULL || (where != Py_None && PyList_Append(found, where) < 0) ? -1 : where != Py_None;
            Py_XDECREF(where);
        }
        Py_XDECREF(grad);
    }
    Py_XDECREF(given);
    if (done != 1) {
        Py_XDECREF(found);
        return done < 0 ? NULL : Py_NewRef(Py_None);
    }
    return found;
}

/* --------------------------------------------------------------------------------------------------------- copying */

/* copy_out(tensor, its storage, lo, hi) */
PyObject *
copy_out(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    long long lo = nargs == 4 ? PyLong_AsLongLong(args[2]) : 0, hi = nargs == 4 ? PyLong_AsLongLong(args[3]) : 0;
    if (nargs != 4 || PyErr_Occurred()) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "copy_out(tensor, storage, lo, hi)");
    }
    int near = is_plain(args[0]) ? truth(get(is_cpu, args[0])) : 0;
    if (near <= 0) {
        return near < 0 ? NULL : Py_NewRef(Py_None);
    }
    long long there, address;
    if (number(PyObject_CallOneArg(storage_nbytes, args[1]), &there) < 0
        || number(PyObject_CallOneArg(storage_address, args[1]), &address) < 0)
    {
        return NULL;
    }
    if (address == 0 || lo < 0 || there < hi || lo > hi) {
        Py_RETURN_NONE;
    }
    return PyBytes_FromStringAndSize((const char *)(intptr_t)address + lo, (Py_ssize_t)(hi - lo));
}

/* fill(tensor, bytes): a new tensor that takes up just so many bytes. */
PyObject *
fill(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || !PyBytes_CheckExact(args[1])) {
        return PyErr_Format(PyExc_TypeError, "fill(tensor, bytes)");
    }
    DLTensor facts;
    if (!facts_of(args[0], &facts) || !readable(&facts)) {
        Py_RETURN_FALSE;
    }
    long long bytes = item_of(&facts);
    for (int32_t d = 0; d < facts.ndim; d++) {
        bytes *= facts.shape[d];
    }
    if (bytes != PyBytes_GET_SIZE(args[1])) {
        Py_RETURN_FALSE;
    }
    memcpy((char *)facts.data + facts.byte_offset, PyBytes_AS_STRING(args[1]), (size_t)bytes);
    Py_RETURN_TRUE;
}

/* same_bytes(a, b) */
PyObject *
same_bytes(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    DLTensor a, b;
    long long count;
    if (nargs != 2 || !facts_of(args[0], &a) || !facts_of(args[1], &b) || !readable(&a) || !readable(&b)
        || a.ndim != b.ndim || memcmp(&a.element, &b.element, sizeof(a.element))
        || memcmp(a.shape, b.shape, (size_t)a.ndim * sizeof(int64_t)) || !in_a_row(&a, &count) || !in_a_row(&b, &count))
    {
        Py_RETURN_NONE;
    }
    const char *left = (char *)a.data + a.byte_offset, *right = (char *)b.data + b.byte_offset;
    return PyBool_FromLong(memcmp(left, right, (size_t)(count * item_of(&a))) == 0);
}

/* A weak reference without a callback leads nowhere: the collector need not count it. */
PyObject *
ref(PyObject *Py_UNUSED(module), PyObject *object)
{
    PyObject *made = PyWeakref_NewRef(object, NULL);
    if (made != NULL && PyObject_GC_IsTracked(made)) {
        PyObject_GC_UnTrack(made);
    }
    return made;
}

PyObject *
know_memory(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject **kept[] = {&is_contiguous, &data_ptr, &nbytes,          &version,
                         &gradient,      &is_cpu,   &storage_address, &storage_nbytes};
    return keep_all(args, kept, sizeof(kept) / sizeof(*kept));
}
