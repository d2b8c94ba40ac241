/* The strided grid of a tensor, and of what an index picks of it: regions.py has the same in Python. */

#include "ledger.h"

/* What Python hands over once, and a name. */
static PyObject *shape_of, *dtype_of, *stride_of, *offset_of, *itemsize;

static struct {
    PyObject *dtype;
    long long size;
} sizes[64];

static long long
size_of(PyObject *dtype)
{
    size_t at = ((size_t)dtype >> 4) & 63;
    if (sizes[at].dtype == dtype) {
        return sizes[at].size;
    }
    long long size;
    if (number(PyObject_GetAttr(dtype, itemsize), &size) < 0) {
        return -1;
    }
    sizes[at].dtype = dtype;
    sizes[at].size = size;
    return size;
}

/* Plain numbers of a tuple; 0 where there are symbols among them, or too many. */
static int
numbers(PyObject *tuple, long long *into)
{
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) > MOST_DIMS) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *one = PyTuple_GET_ITEM(tuple, i);
        if (!PyLong_CheckExact(one)) {
            return 0;
        }
        into[i] = PyLong_AsLongLong(one);
    }
    return 1;
}

/* From what DLPack tells; 0 where it does not. */
static int
at_once(PyObject *tensor, Grid *grid)
{
    DLTensor facts;
    if (!facts_of(tensor, &facts) || facts.ndim > MOST_DIMS) {
        return 0;
    }
    if (number(PyObject_CallOneArg(offset_of, tensor), &grid->offset) < 0
        || (grid->dtype = dtype_in(tensor, &facts)) == NULL)
    {
        return -1;
    }
    grid->item = item_of(&facts);
    grid->dims = facts.ndim;
    for (int d = 0; d < grid->dims; d++) {
        grid->sizes[d] = facts.shape[d];
        grid->steps[d] = facts.strides[d];
    }
    if (readable(&facts)) {
        grid->memory = (const char *)facts.data - grid->offset * grid->item;
    }
    return 1;
}

int
grid_of(PyObject *tensor, Grid *grid)
{
    grid->memory = NULL;
    if (shape_of == NULL) {
        return 0;
    }
    int done = at_once(tensor, grid);
    if (done) {
        return done;
    }
    PyObject *shape = get(shape_of, tensor), *strides = NULL, *dtype = NULL, *offset = NULL;
    if (shape == NULL) {
        if (PyErr_ExceptionMatches(PyExc_RuntimeError)) { /* a nested tensor has none */
            PyErr_Clear();
            return 0;
        }
        return -1;
    }
    if ((strides = PyObject_CallOneArg(stride_of, tensor)) == NULL || (dtype = get(dtype_of, tensor)) == NULL
        || (offset = PyObject_CallOneArg(offset_of, tensor)) == NULL || (grid->item = size_of(dtype)) < 0)
    {
        done = -1;
    }
    else {
        done = PyLong_CheckExact(offset) && numbers(shape, grid->sizes) && numbers(strides, grid->steps)
               && PyTuple_GET_SIZE(shape) == PyTuple_GET_SIZE(strides);
    }
    if (done == 1) {
        grid->offset = PyLong_AsLongLong(offset);
        grid->dims = (int)PyTuple_GET_SIZE(shape);
        grid->dtype = dtype;
    }
    Py_DECREF(shape);
    Py_XDECREF(strides);
    Py_XDECREF(dtype);
    Py_XDECREF(offset);
    return done;
}

static int
contiguous(const Grid *grid)
{
    long long expected = 1;
    for (int d = grid->dims - 1; d >= 0; d--) {
        if (grid->sizes[d] != 1) {
            if (grid->steps[d] != expected) {
                return 0;
            }
            expected *= grid->sizes[d];
        }
    }
    return 1;
}

static int
no_self_overlap(const Grid *grid)
{
    int order[MOST_DIMS], n = 0;
    for (int d = 0; d < grid->dims; d++) {
        if (grid->sizes[d] > 1 && grid->steps[d]) {
            int at = n++;
            while (at > 0 && grid->steps[order[at - 1]] > grid->steps[d]) {
                order[at] = order[at - 1];
                at--;
            }
            order[at] = d;
        }
    }
    long long end = 0;
    for (int i = 0; i < n; i++) {
        long long step = grid->steps[order[i]];
        if (step <= end) {
            return 0;
        }
        end += step * (grid->sizes[order[i]] - 1);
    }
    return 1;
}

/* From where to where, in bytes, and whether every byte between belongs to it. */
void
bounds(const Grid *grid, long long *lo, long long *hi, int *dense)
{
    long long count = 1, reach = 0, distinct = 1;
    for (int d = 0; d < grid->dims; d++) {
        count *= grid->sizes[d];
        reach += (grid->sizes[d] - 1) * grid->steps[d];
        distinct *= grid->steps[d] ? grid->sizes[d] : 1;
    }
    *lo = grid->offset * grid->item;
    *dense = 1;
    if (count == 0) {
        *hi = *lo;
    }
    else if (contiguous(grid)) {
        *hi = *lo + count * grid->item;
    }
    else {
        *hi = *lo + (reach + 1) * grid->item;
        *dense = distinct == reach + 1 && no_self_overlap(grid);
    }
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

/* The part of the grid that `t[key]` is a view of; 0 where that takes more than numbers, slices and an ellipsis. */
int
grid_at(Grid *grid, PyObject *key)
{
    PyObject **keys = &key;
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
        for (long long rest = grid->dims - from - (n - i - 1); rest > 0; rest--, from++, to++) {
            grid->sizes[to] = grid->sizes[from];
            grid->steps[to] = grid->steps[from];
        }
    }
    for (; from < grid->dims; from++, to++) {
        grid->sizes[to] = grid->sizes[from];
        grid->steps[to] = grid->steps[from];
    }
    grid->dims = to;
    return 1;
}

PyObject *
know_grids(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject **kept[] = {&shape_of, &dtype_of, &stride_of, &offset_of};
    Name names[] = {{&itemsize, "itemsize"}};
    return INTERN(names) < 0 ? NULL : keep_all(args, kept, sizeof(kept) / sizeof(*kept));
}
