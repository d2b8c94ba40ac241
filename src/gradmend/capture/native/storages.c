/* The memory under a tensor, asked by torch's own methods: the names on torch.Tensor may be tapped. */

#include "native.h"

/* What Python hands over once. */
static PyObject *untyped_storage, *cdata, *nbytes, *data_ptr, *can_resize;

PyObject *
storage_of(PyObject *tensor)
{
    return PyObject_CallOneArg(untyped_storage, tensor);
}

PyObject *
key_in(PyObject *storage)
{
    return get(cdata, storage);
}

PyObject *
key_of(PyObject *tensor)
{
    PyObject *storage = storage_of(tensor), *key = storage == NULL ? NULL : key_in(storage);
    Py_XDECREF(storage);
    return key;
}

int
bytes_in(PyObject *storage, long long *bytes)
{
    return number(PyObject_CallOneArg(nbytes, storage), bytes);
}

int
address_in(PyObject *storage, long long *address)
{
    return number(PyObject_CallOneArg(data_ptr, storage), address);
}

int
is_its_own(PyObject *storage)
{
    return truth(PyObject_CallOneArg(can_resize, storage));
}

PyObject *
know_storages(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject **kept[] = {&untyped_storage, &cdata, &nbytes, &data_ptr, &can_resize};
    return keep_all(args, kept, sizeof(kept) / sizeof(*kept));
}
