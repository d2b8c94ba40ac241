/* What a tensor is, in one call: by DLPack's exchange table, which torch hands out as a capsule. Its layout is fixed by
   DLPack, not by torch, so that this too serves every torch; one without the table is asked attribute by attribute. */

#include "native.h"

/* DLPack 1.x: DLTensor and DLPackExchangeAPI. */
typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } element;
    int64_t *shape, *strides; /* the tensor's own */
    uint64_t byte_offset;
} DLTensor;
typedef struct {
    struct {
        uint32_t major, minor;
    } version;
    void *older;
    void *unused[3];
    int (*look)(void *tensor, DLTensor *into);
} Exchange;

enum { MAJOR = 1, CPU = 1, MOST_DIMS = 16 };

static const Exchange *exchange;
static PyObject *capsule, *dtype_of, *version, *offset_of, *storage_address, *storage_nbytes;
PyTypeObject *plain_classes[2];

/* 0 where torch or the tensor can't tell. */
static int
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

/* An attribute, as its descriptor has it. */
static PyObject *
get(PyObject *property, PyObject *owner)
{
    return Py_TYPE(property)->tp_descr_get(property, owner, (PyObject *)Py_TYPE(owner));
}

/* What a call returned, and no longer needed: the number that it is; -1 on an error. */
static int
number(PyObject *value, long long *into)
{
    if (value == NULL) {
        return -1;
    }
    *into = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return PyErr_Occurred() ? -1 : 0;
}

/* Where the elements lie: the first, how many in each dimension, and how far apart, counted in elements. */
typedef struct {
    long long offset;
    int dims;
    long long sizes[MOST_DIMS], steps[MOST_DIMS];
    PyObject *dtype; /* borrowed: torch keeps its dtypes for ever */
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
make_of(const Grid *grid)
{
    return PyObject_CallFunction(make, "LONN", grid->offset, grid->dtype, tuple_of(grid->sizes, grid->dims),
                                 tuple_of(grid->steps, grid->dims));
}

static PyObject *
told(const Grid *grid)
{
    if (grid->dims > FEW_DIMS) {
        return make_of(grid);
    }
    long long numbers[2 * FEW_DIMS + 2] = {grid->dims, grid->offset};
    memcpy(numbers + 2, grid->sizes, (size_t)grid->dims * sizeof(*numbers));
    memcpy(numbers + 2 + FEW_DIMS, grid->steps, (size_t)grid->dims * sizeof(*numbers));
    uint64_t hash = (uint64_t)(uintptr_t)grid->dtype >> 4;
    for (int i = 0; i < grid->dims; i++) {
        hash = (hash ^ (uint64_t)grid->sizes[i] << 32 ^ (uint64_t)grid->steps[i]) * MIXER;
    }
    size_t at = (size_t)((hash ^ (uint64_t)grid->offset) * MIXER >> 52) & (KEPT - 1);
    if (lately[at].made != NULL && lately[at].dtype == grid->dtype
        && memcmp(lately[at].numbers, numbers, sizeof(numbers)) == 0)
    {
        return Py_NewRef(lately[at].made);
    }
    PyObject *made = make_of(grid);
    if (made != NULL) {
        lately[at].dtype = grid->dtype;
        memcpy(lately[at].numbers, numbers, sizeof(numbers));
        Py_XSETREF(lately[at].made, Py_NewRef(made));
    }
    return made;
}

/* 1; 0 where Python must ask; -1 on an error. DLPack does not tell `uint4` from `uint8`, and knows no offset. */
static int
look_at(PyObject *tensor, Grid *grid)
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
    if (number(PyObject_CallOneArg(offset_of, tensor), &grid->offset) < 0) {
        return -1;
    }
    grid->dtype = get(dtype_of, tensor);
    Py_XDECREF(grid->dtype);
    return grid->dtype == NULL ? -1 : 1;
}

PyObject *
layout_of(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    Grid found;
    int done = look_at(tensor, &found);
    return done == 1 ? told(&found) : done < 0 ? NULL : Py_NewRef(Py_None);
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
    if (nargs != 2) {
        return PyErr_Format(PyExc_TypeError, "layout_at(tensor, key)");
    }
    Grid found;
    int done = look_at(args[0], &found);
    if (done == 1) {
        done = narrow(&found, args[1]);
    }
    return done == 1 ? told(&found) : done < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---------------------------------------------------------------------------------------------------------- bytes */

/* copy_out(tensor, its storage, lo, hi) */
PyObject *
copy_out(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4) {
        return PyErr_Format(PyExc_TypeError, "copy_out(tensor, storage, lo, hi)");
    }
    DLTensor facts;
    if (!facts_of(args[0], &facts) || facts.device_type != CPU) {
        Py_RETURN_NONE;
    }
    long long lo = PyLong_AsLongLong(args[2]), hi = PyLong_AsLongLong(args[3]), there, address;
    if (PyErr_Occurred() || number(PyObject_CallOneArg(storage_nbytes, args[1]), &there) < 0
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
    if (!facts_of(args[0], &facts) || facts.device_type != CPU || facts.data == NULL) {
        Py_RETURN_FALSE;
    }
    long long bytes = (facts.element.bits * facts.element.lanes + 7) / 8;
    for (int32_t d = 0; d < facts.ndim; d++) {
        bytes *= facts.shape[d];
    }
    if (bytes != PyBytes_GET_SIZE(args[1])) {
        Py_RETURN_FALSE;
    }
    memcpy((char *)facts.data + facts.byte_offset, PyBytes_AS_STRING(args[1]), (size_t)bytes);
    Py_RETURN_TRUE;
}

PyObject *
version_of(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    return get(version, tensor);
}

/* Three numbers a tensor, as bytes: address, size in bytes, version. None where Python must look, as at tensors with gaps. */
PyObject *
places(PyObject *Py_UNUSED(module), PyObject *tensors)
{
    PyObject *given = PySequence_Fast(tensors, "places(tensors)");
    PyObject *made = given == NULL ? NULL : PyBytes_FromStringAndSize(NULL, PySequence_Fast_GET_SIZE(given) * 24);
    long long *into = made == NULL ? NULL : (long long *)PyBytes_AS_STRING(made);
    for (Py_ssize_t i = 0; made != NULL && made != Py_None && i < PySequence_Fast_GET_SIZE(given); i++, into += 3) {
        PyObject *tensor = PySequence_Fast_GET_ITEM(given, i);
        DLTensor facts = {0};
        int plain = facts_of(tensor, &facts) && facts.strides != NULL;
        into[1] = facts.element.bits * facts.element.lanes / 8;
        for (int32_t d = plain ? facts.ndim : 0; d-- > 0; into[1] *= facts.shape[d]) {
            long long step = facts.strides[d] * facts.element.bits * facts.element.lanes / 8;
            plain &= facts.shape[d] == 1 || (facts.shape[d] > 1 && step == into[1]);
        }
        into[0] = (long long)(intptr_t)facts.data + (long long)facts.byte_offset;
        if (!plain) {
            Py_SETREF(made, Py_NewRef(Py_None));
        }
        else if (number(get(version, tensor), into + 2) < 0) {
            Py_CLEAR(made);
        }
    }
    Py_XDECREF(given);
    return made;
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
know_facts(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject **const kept[] = {&capsule, &dtype_of, &version, &offset_of, &storage_address, &storage_nbytes};
    PyObject *found[6], *one, *other;
    if (!PyArg_ParseTuple(args, "OOOOOOO!O!", found, found + 1, found + 2, found + 3, found + 4, found + 5, &PyType_Type,
                          &one, &PyType_Type, &other))
    {
        return NULL;
    }
    plain_classes[0] = (PyTypeObject *)Py_NewRef(one);
    plain_classes[1] = (PyTypeObject *)Py_NewRef(other);
    for (int i = 0; i < 6; i++) {
        Py_XSETREF(*kept[i], Py_NewRef(found[i]));
    }
    if (PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
        const Exchange *table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        if (table->version.major == MAJOR && table->look != NULL) {
            exchange = table;
        }
    }
    Py_RETURN_NONE;
}

PyObject *
know_layouts(PyObject *Py_UNUSED(module), PyObject *callable)
{
    Py_XSETREF(make, Py_NewRef(callable));
    Py_RETURN_NONE;
}
