/* What a tensor is, in one call: by DLPack's exchange table, which torch hands out as a capsule. Its layout is fixed by
   DLPack, not by torch, so that this too serves every torch; one without the table is asked attribute by attribute. */

#include "native.h"

/* DLPack 1.x: DLPackExchangeAPI and DLTensor. */
typedef struct {
    struct {
        uint32_t major, minor;
    } version;
    void *older;
    void *unused[3];
    int (*look)(void *tensor, DLTensor *into);
} Exchange;

enum { MAJOR = 1, CPU = 1, FLOAT = 2, BFLOAT = 4, COMPLEX = 5 };

static const Exchange *exchange;
static PyObject *dtype_of;
PyTypeObject *plain_classes[PLAIN_CLASSES];

/* torch's name for each kind of float met so far; of integers it has several that DLPack does not tell apart. */
static struct {
    Element element;
    PyObject *dtype;
} names[64];

int
facts_of(PyObject *tensor, DLTensor *facts)
{
    /* A class of its own may mind being looked at. */
    if (exchange == NULL || !is_plain(tensor)) {
        return 0;
    }
    if (exchange->look(tensor, facts) != 0) {
        PyErr_Clear(); /* sparse, nested, meta: Python knows what that means */
        return 0;
    }
    return 1;
}

int
readable(const DLTensor *facts)
{
    return facts->device_type == CPU && facts->data != NULL; /* a tensor known to be zero has no memory */
}

long long
item_of(const DLTensor *facts)
{
    return (facts->element.bits * facts->element.lanes + 7) / 8;
}

int
in_a_row(const DLTensor *facts, long long *count)
{
    int row = 1;
    *count = 1;
    for (int32_t i = facts->ndim; i-- > 0;) {
        row &= facts->shape[i] == 1 || facts->strides == NULL || facts->strides[i] == *count;
        *count *= facts->shape[i];
    }
    return row || *count == 0;
}

PyObject *
dtype_in(PyObject *tensor, const DLTensor *facts)
{
    const Element *element = &facts->element;
    size_t at = (element->code * 7u + element->bits / 4u + element->lanes) & 63;
    if (names[at].dtype != NULL && memcmp(&names[at].element, element, sizeof(*element)) == 0) {
        return names[at].dtype;
    }
    PyObject *dtype = get(dtype_of, tensor);
    if (dtype != NULL && (element->code == FLOAT || element->code == BFLOAT || element->code == COMPLEX)) {
        names[at].element = *element;
        names[at].dtype = dtype;
    }
    Py_XDECREF(dtype); /* torch keeps its dtypes for ever */
    return dtype;
}

static int
know_plain(PyObject *classes)
{
    PyObject *all = PySequence_List(classes);
    if (all == NULL || PyList_GET_SIZE(all) > PLAIN_CLASSES) {
        Py_XDECREF(all);
        PyErr_Format(PyExc_ValueError, "at most %d plain classes", PLAIN_CLASSES);
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(all); i++) {
        Py_XSETREF(plain_classes[i], (PyTypeObject *)Py_NewRef(PyList_GET_ITEM(all, i)));
    }
    Py_DECREF(all);
    return 0;
}

PyObject *
know_facts(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule, *property, *classes;
    if (!PyArg_ParseTuple(args, "OOO!", &capsule, &property, &PyFrozenSet_Type, &classes)
        || know_plain(classes) < 0) {
        return NULL;
    }
    Py_XSETREF(dtype_of, Py_NewRef(property));
    exchange = NULL;
    if (PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
        const Exchange *found = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        if (found != NULL && found->version.major == MAJOR && found->look != NULL) {
            exchange = found;
        }
    }
    return PyBool_FromLong(exchange != NULL);
}
