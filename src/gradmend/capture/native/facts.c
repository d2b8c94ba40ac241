/* What a tensor is, in one call: by DLPack's exchange table, which torch hands out as a capsule. Its layout is fixed by
   DLPack, not by torch, so that this too serves every torch; one without the table is asked attribute by attribute. */

#include "native.h"

/* DLPack 1.x: DLPackExchangeAPI. */
typedef struct {
    struct {
        uint32_t major, minor;
    } version;
    void *older;
    void *unused[3];
    int (*look)(void *tensor, DLTensor *into);
} Exchange;

enum { MAJOR = 1, CPU = 1, FLOAT = 2, BFLOAT = 4, COMPLEX = 5, MOST_DIMS = 16 };

static const Exchange *exchange;
static PyObject *capsule, *dtype_of, *offset_of;
PyTypeObject *plain_classes[PLAIN_CLASSES];

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

/* torch's name for each kind of float met so far; of integers it has several that DLPack does not tell apart. */
static struct {
    Element element;
    PyObject *dtype; /* borrowed: torch keeps its dtypes for ever */
} names[64];

static PyObject * /* borrowed */
dtype_in(PyObject *tensor, const Element *element)
{
    size_t at = (element->code * 7u + element->bits / 4u + element->lanes) & 63;
    if (names[at].dtype != NULL && memcmp(&names[at].element, element, sizeof(*element)) == 0) {
        return names[at].dtype;
    }
    PyObject *dtype = get(dtype_of, tensor);
    if (dtype != NULL && (element->code == FLOAT || element->code == BFLOAT || element->code == COMPLEX)) {
        names[at].element = *element;
        names[at].dtype = dtype;
    }
    Py_XDECREF(dtype);
    return dtype;
}

/* Where the elements lie: the first, how many in each dimension, and how far apart, counted in elements. */
typedef struct {
    long long offset;
    int dims;
    long long sizes[MOST_DIMS], steps[MOST_DIMS];
} Grid;

static PyObject *
tuple_of(const long long *numbers, int n)
{
    PyObject *made = PyTuple_New(n);
    for (int i = 0; made != NULL && i < n; i++) {
        PyObject *one = PyLong_FromLongLong(numbers[i]);
        if (one == NULL) {
            Py_CLEAR(made);
            break;
        }
        PyTuple_SET_ITEM(made, i, one);
    }
    return made;
}

/* What was made of the grids met lately: what is saved is often what is written next. */
enum { FEW_DIMS = 5, KEPT = 4096 /* a power of two */ };
static struct {
    PyObject *made, *dtype; /* the dtype is borrowed */
    long long numbers[2 * FEW_DIMS + 2];
} lately[KEPT];
static PyObject *make; /* (offset, dtype, shape, strides) -> what Python calls it */

static PyObject *
make_of(const Grid *grid, PyObject *dtype)
{
    PyObject *shape = tuple_of(grid->sizes, grid->dims), *strides = shape == NULL ? NULL : tuple_of(grid->steps, grid->dims);
    PyObject *made = strides == NULL ? NULL : PyObject_CallFunction(make, "LOOO", grid->offset, dtype, shape, strides);
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    return made;
}

static PyObject *
told(const Grid *grid, PyObject *dtype)
{
    if (grid->dims > FEW_DIMS) {
        return make_of(grid, dtype);
    }
    long long numbers[2 * FEW_DIMS + 2] = {grid->dims, grid->offset};
    memcpy(numbers + 2, grid->sizes, (size_t)grid->dims * sizeof(*numbers));
    memcpy(numbers + 2 + FEW_DIMS, grid->steps, (size_t)grid->dims * sizeof(*numbers));
    uint64_t hash = (uint64_t)(uintptr_t)dtype >> 4;
    for (int i = 0; i < grid->dims; i++) {
        hash = (hash ^ (uint64_t)grid->sizes[i] << 32 ^ (uint64_t)grid->steps[i]) * 0x9E3779B97F4A7C15ull;
    }
    size_t at = (size_t)((hash ^ (uint64_t)grid->offset) * 0x9E3779B97F4A7C15ull >> 52) & (KEPT - 1);
    if (lately[at].made != NULL && lately[at].dtype == dtype && memcmp(lately[at].numbers, numbers, sizeof(numbers)) == 0) {
        return Py_NewRef(lately[at].made);
    }
    PyObject *made = make_of(grid, dtype);
    if (made != NULL) {
        lately[at].dtype = dtype;
        memcpy(lately[at].numbers, numbers, sizeof(numbers));
        Py_XSETREF(lately[at].made, Py_NewRef(made));
    }
    return made;
}

/* 1; 0 where Python must ask; -1 on an error. The dtype is borrowed. */
static int
grid_of(PyObject *tensor, Grid *grid, PyObject **dtype)
{
    DLTensor facts;
    if (!facts_of(tensor, &facts) || facts.ndim > MOST_DIMS || facts.strides == NULL) {
        return 0;
    }
    grid->dims = facts.ndim;
    for (int d = 0; d < grid->dims; d++) {
        grid->sizes[d] = facts.shape[d];
        grid->steps[d] = facts.strides[d];
    }
    *dtype = dtype_in(tensor, &facts.element);
    return *dtype == NULL || number(PyObject_CallOneArg(offset_of, tensor), &grid->offset) < 0 ? -1 : 1;
}

PyObject *
layout_of(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    Grid found;
    PyObject *dtype;
    int done = grid_of(tensor, &found, &dtype);
    return done == 1 ? told(&found, dtype) : done < 0 ? NULL : Py_NewRef(Py_None);
}

/* ------------------------------------------------------------------------------------------------ basic indexing */

static int
plain_bound(PyObject *bound)
{
    return bound == Py_None || PyLong_CheckExact(bound);
}

/* One index, for the dimension `*from` of the grid; what stays of it becomes its dimension `*to`. */
static int
index_one(Grid *grid, PyObject *key, int *from, int *to)
{
    if (*from >= grid->dims) {
        return 0;
    }
    long long size = grid->sizes[*from], step = grid->steps[*from];
    if (PyLong_CheckExact(key)) {
        int far;
        long long at = PyLong_AsLongLongAndOverflow(key, &far);
        if (far || at < -size || at >= size) {
            return 0;
        }
        grid->offset += (at < 0 ? at + size : at) * step;
        (*from)++;
        return 1;
    }
    PySliceObject *slice = (PySliceObject *)key;
    Py_ssize_t start, stop, by;
    if (!PySlice_Check(key) || !plain_bound(slice->start) || !plain_bound(slice->stop) || !plain_bound(slice->step)
        || PySlice_Unpack(key, &start, &stop, &by) < 0 || by <= 0)
    {
        PyErr_Clear();
        return 0;
    }
    Py_ssize_t length = PySlice_AdjustIndices((Py_ssize_t)size, &start, &stop, by);
    grid->offset += start * step;
    grid->sizes[*to] = length;
    grid->steps[*to] = step * by;
    (*from)++;
    (*to)++;
    return 1;
}

static void
whole_dimension(Grid *grid, int *from, int *to)
{
    grid->sizes[*to] = grid->sizes[*from];
    grid->steps[*to] = grid->steps[*from];
    (*from)++;
    (*to)++;
}

/* The part of the grid that `t[key]` is a view of; 0 where that takes more than numbers, slices and an ellipsis. */
static int
narrow(Grid *grid, PyObject *key)
{
    PyObject *const *keys = &key;
    Py_ssize_t n = 1;
    if (PyTuple_CheckExact(key)) {
        keys = ((PyTupleObject *)key)->ob_item;
        n = PyTuple_GET_SIZE(key);
    }
    int from = 0, to = 0, dots = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (keys[i] != Py_Ellipsis) {
            if (!index_one(grid, keys[i], &from, &to)) {
                return 0;
            }
            continue;
        }
        if (dots++) {
            return 0;
        }
        for (long long rest = grid->dims - from - (n - i - 1); rest > 0; rest--) {
            whole_dimension(grid, &from, &to);
        }
    }
    while (from < grid->dims) {
        whole_dimension(grid, &from, &to);
    }
    grid->dims = to;
    return 1;
}

PyObject *
layout_at(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    Grid found;
    PyObject *dtype;
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "layout_at(tensor, key)");
        return NULL;
    }
    int done = grid_of(args[0], &found, &dtype);
    if (done == 1) {
        done = narrow(&found, args[1]);
    }
    return done == 1 ? told(&found, dtype) : done < 0 ? NULL : Py_NewRef(Py_None);
}

static int
know_plain(PyObject *classes)
{
    PyObject *all = PySequence_List(classes);
    if (all == NULL || PyList_GET_SIZE(all) > PLAIN_CLASSES) {
        Py_XDECREF(all);
        PyErr_SetString(PyExc_TypeError, "too many plain classes");
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(all); i++) {
        plain_classes[i] = (PyTypeObject *)Py_NewRef(PyList_GET_ITEM(all, i));
    }
    Py_DECREF(all);
    return 0;
}

PyObject *
know_facts(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *table, *dtype, *offset, *classes;
    if (!PyArg_ParseTuple(args, "OOOO", &table, &dtype, &offset, &classes) || know_plain(classes) < 0) {
        return NULL;
    }
    Py_XSETREF(dtype_of, Py_NewRef(dtype));
    Py_XSETREF(offset_of, Py_NewRef(offset));
    Py_XSETREF(capsule, Py_NewRef(table));
    if (PyCapsule_IsValid(table, "dlpack_exchange_api")) {
        const Exchange *found = PyCapsule_GetPointer(table, "dlpack_exchange_api");
        if (found != NULL && found->version.major == MAJOR && found->look != NULL) {
            exchange = found;
        }
    }
    return PyBool_FromLong(exchange != NULL);
}

PyObject *
know_layouts(PyObject *Py_UNUSED(module), PyObject *callable)
{
    Py_XSETREF(make, Py_NewRef(callable));
    Py_RETURN_NONE;
}
