/* Which bytes of its storage a tensor covers: regions.py has the same in Python, and says what a Layout is. */

#include "ledger.h"

static PyTypeObject *Layout;
static PyObject *shape_of, *dtype_of, *stride_of, *offset_of, *slow_layout, *itemsize;

static struct {
    PyObject *dtype; /* torch keeps its dtypes for ever */
    long long size;
} sizes[64];

static long long
size_of(PyObject *dtype)
{
    size_t at = ((size_t)dtype >> 4) & 63;
    if (sizes[at].dtype == dtype) {
        return sizes[at].size;
    }
    PyObject *told = PyObject_GetAttr(dtype, itemsize);
    long long size = told == NULL ? -1 : PyLong_AsLongLong(told);
    Py_XDECREF(told);
    if (size > 0) {
        sizes[at].dtype = dtype;
        sizes[at].size = size;
    }
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

void
grid_clear(Grid *grid)
{
    Py_CLEAR(grid->shape);
    Py_CLEAR(grid->strides);
    Py_CLEAR(grid->dtype);
}

/* The same from what DLPack tells; 0 where it does not. */
static int
grid_from(PyObject *tensor, Grid *grid)
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
    if (on_cpu(&facts) && facts.data != NULL) {
        grid->memory = (char *)facts.data - grid->offset * grid->item;
    }
    return 1;
}

int
grid_of(PyObject *tensor, Grid *grid)
{
    PyObject *offset = NULL;
    grid->shape = grid->strides = grid->dtype = NULL;
    grid->memory = NULL;
    if (Layout == NULL) {
        return 0;
    }
    int done = grid_from(tensor, grid);
    if (done) {
        return done;
    }
    done = -1;
    if ((grid->shape = get(shape_of, tensor)) == NULL) {
        if (PyErr_ExceptionMatches(PyExc_RuntimeError)) { /* a nested tensor has none */
            PyErr_Clear();
            return 0;
        }
        return -1;
    }
    if ((grid->strides = PyObject_CallOneArg(stride_of, tensor)) == NULL
        || (grid->dtype = get(dtype_of, tensor)) == NULL || (offset = PyObject_CallOneArg(offset_of, tensor)) == NULL
        || (grid->item = size_of(grid->dtype)) < 0)
    {
        goto end;
    }
    done = PyLong_CheckExact(offset) && numbers(grid->shape, grid->sizes) && numbers(grid->strides, grid->steps)
           && PyTuple_GET_SIZE(grid->shape) == PyTuple_GET_SIZE(grid->strides);
    if (done) {
        grid->offset = PyLong_AsLongLong(offset);
        grid->dims = (int)PyTuple_GET_SIZE(grid->shape);
    }
end:
    Py_XDECREF(offset);
    if (done <= 0) {
        grid_clear(grid);
    }
    return done;
}

static PyObject *
tuple_of(const long long *from, int n)
{
    PyObject *made = PyTuple_New(n);
    for (int i = 0; made != NULL && i < n; i++) {
        PyObject *one = PyLong_FromLongLong(from[i]);
        if (one == NULL) {
            Py_CLEAR(made);
            break;
        }
        PyTuple_SET_ITEM(made, i, one);
    }
    return made;
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

static PyObject *
new_layout(Grid *grid)
{
    long long lo, hi;
    int dense;
    bounds(grid, &lo, &hi, &dense);
    if ((grid->shape == NULL && (grid->shape = tuple_of(grid->sizes, grid->dims)) == NULL)
        || (grid->strides == NULL && (grid->strides = tuple_of(grid->steps, grid->dims)) == NULL))
    {
        return NULL;
    }
    PyObject *made = Layout->tp_alloc(Layout, 7);
    PyObject *parts[7] = {PyLong_FromLongLong(lo), PyLong_FromLongLong(hi), Py_NewRef(dense ? Py_True : Py_False),
                          PyLong_FromLongLong(grid->offset), Py_NewRef(grid->shape), Py_NewRef(grid->strides),
                          Py_NewRef(grid->dtype)};
    int failed = made == NULL;
    for (int i = 0; i < 7; i++) {
        failed |= parts[i] == NULL;
        if (made != NULL) {
            PyTuple_SET_ITEM(made, i, parts[i]);
        }
        else {
            Py_XDECREF(parts[i]);
        }
    }
    if (failed) {
        Py_XDECREF(made);
        return PyErr_NoMemory();
    }
    /* Numbers and a dtype: nothing for the garbage collector. */
    PyObject_GC_UnTrack(grid->shape);
    PyObject_GC_UnTrack(grid->strides);
    PyObject_GC_UnTrack(made);
    return made;
}

/* What is saved is often what is written next: layouts made lately are handed out once more. */
static struct {
    long long offset;
    int dims;
    long long sizes[MOST_DIMS], steps[MOST_DIMS];
    PyObject *dtype, *layout;
} lately[256];

PyObject *
layout_from(Grid *grid)
{
    size_t hash = (size_t)grid->offset ^ (size_t)grid->dims << 32;
    for (int d = 0; d < grid->dims; d++) {
        hash = (hash ^ (size_t)grid->sizes[d] ^ (size_t)grid->steps[d] << 24) * 0x9E3779B97F4A7C15ull;
    }
    size_t at = hash * 0x9E3779B97F4A7C15ull >> 56, bytes = (size_t)grid->dims * sizeof(long long);
    if (lately[at].layout != NULL && lately[at].offset == grid->offset && lately[at].dims == grid->dims
        && lately[at].dtype == grid->dtype && memcmp(lately[at].sizes, grid->sizes, bytes) == 0
        && memcmp(lately[at].steps, grid->steps, bytes) == 0)
    {
        return Py_NewRef(lately[at].layout);
    }
    PyObject *made = new_layout(grid);
    if (made != NULL) {
        lately[at].offset = grid->offset;
        lately[at].dims = grid->dims;
        lately[at].dtype = grid->dtype; /* which the layout holds */
        memcpy(lately[at].sizes, grid->sizes, bytes);
        memcpy(lately[at].steps, grid->steps, bytes);
        Py_XSETREF(lately[at].layout, Py_NewRef(made));
    }
    return made;
}

PyObject *
layout_of(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    Grid grid;
    int done = grid_of(tensor, &grid);
    if (done <= 0) {
        return done < 0 ? NULL : PyObject_CallOneArg(slow_layout, tensor);
    }
    PyObject *made = layout_from(&grid);
    grid_clear(&grid);
    return made;
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
    Py_CLEAR(grid->shape);
    Py_CLEAR(grid->strides);
    return 1;
}

PyObject *
know_layouts(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *kind, *given[5], **kept[5] = {&shape_of, &dtype_of, &stride_of, &offset_of, &slow_layout};
    if (!PyArg_ParseTuple(args, "O!OOOOO", &PyType_Type, &kind, given, given + 1, given + 2, given + 3, given + 4)) {
        return NULL;
    }
    if (Py_TYPE(given[0])->tp_descr_get == NULL || Py_TYPE(given[1])->tp_descr_get == NULL
        || !PyType_IsSubtype((PyTypeObject *)kind, &PyTuple_Type))
    {
        PyErr_SetString(PyExc_TypeError, "a Layout is a tuple, and shape and dtype come as properties");
        return NULL;
    }
    if (itemsize == NULL && (itemsize = PyUnicode_InternFromString("itemsize")) == NULL) {
        return NULL;
    }
    for (int i = 0; i < 5; i++) {
        Py_XSETREF(*kept[i], Py_NewRef(given[i]));
    }
    Py_XSETREF(Layout, (PyTypeObject *)Py_NewRef(kind));
    Py_RETURN_NONE;
}
