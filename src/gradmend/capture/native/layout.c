/* A tensor's place in its storage: regions.py has the same in Python, and says what it means. */

#include "ledger.h"

#include <stddef.h>
#include <structmember.h>

PyTypeObject *LayoutType;
static PyObject *slow_layout; /* what Python hands over once */

static size_t
mixed(size_t hash, size_t more)
{
    return (hash ^ more ^ hash >> 29) * 0x9E3779B97F4A7C15ull;
}

static size_t
hash_of(const Grid *grid)
{
    size_t hash = mixed((size_t)grid->dims + 1, (size_t)grid->offset);
    for (int d = 0; d < grid->dims; d++) {
        hash = mixed(mixed(hash, (size_t)grid->sizes[d]), (size_t)grid->steps[d]);
    }
    return hash;
}

/* Whether it is just this grid, where the bounds say nothing more. */
static int
is_of(const Layout *layout, const Grid *grid)
{
    size_t bytes = (size_t)grid->dims * sizeof(long long);
    return layout->offset == grid->offset && layout->dtype == grid->dtype && Py_SIZE(layout) == 2 * grid->dims
           && memcmp(layout->numbers, grid->sizes, bytes) == 0
           && memcmp(layout->numbers + grid->dims, grid->steps, bytes) == 0;
}

static Layout *
new_layout(const Grid *grid, size_t hash)
{
    Layout *made = PyObject_NewVar(Layout, LayoutType, 2 * grid->dims);
    if (made != NULL) {
        int dense;
        bounds(grid, &made->lo, &made->hi, &dense);
        made->dense = (char)dense;
        made->offset = grid->offset;
        made->dtype = Py_NewRef(grid->dtype);
        made->hash = (Py_hash_t)(hash >> 1);
        memcpy(made->numbers, grid->sizes, (size_t)grid->dims * sizeof(long long));
        memcpy(made->numbers + grid->dims, grid->steps, (size_t)grid->dims * sizeof(long long));
    }
    return made;
}

/* What is saved is often what is written next: layouts made lately are handed out once more. */
static Layout *lately[256];

PyObject *
layout_from(const Grid *grid)
{
    size_t hash = hash_of(grid);
    Layout **at = lately + (hash >> 56);
    if (*at == NULL || !is_of(*at, grid)) {
        Layout *made = new_layout(grid, hash);
        if (made == NULL) {
            return NULL;
        }
        Py_XSETREF(*at, made);
    }
    return Py_NewRef((PyObject *)*at);
}

PyObject *
layout_of(PyObject *Py_UNUSED(module), PyObject *tensor)
{
    Grid grid;
    int done = grid_of(tensor, &grid);
    if (done <= 0) {
        return done < 0 ? NULL : PyObject_CallOneArg(slow_layout, tensor);
    }
    return layout_from(&grid);
}

/* ------------------------------------------------------------------------------------------------------- to Python */

/* Layout(lo, hi, dense, offset, shape, strides, dtype), as regions.py makes them: what it says of the bounds stands. */
static PyObject *
Layout_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    long long lo, hi, offset;
    int dense;
    PyObject *shape, *strides, *dtype;
    if (!PyArg_ParseTuple(args, "LLpLO!O!O", &lo, &hi, &dense, &offset, &PyTuple_Type, &shape, &PyTuple_Type, &strides,
                          &dtype))
    {
        return NULL;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(shape);
    if (PyTuple_GET_SIZE(strides) != n) {
        PyErr_SetString(PyExc_ValueError, "a Layout has as many strides as sizes");
        return NULL;
    }
    Layout *made = PyObject_NewVar(Layout, type, 2 * n);
    if (made == NULL) {
        return NULL;
    }
    made->dtype = Py_NewRef(dtype);
    made->lo = lo;
    made->hi = hi;
    made->dense = (char)dense;
    made->offset = offset;
    size_t hash = mixed((size_t)n + 1, (size_t)offset);
    for (Py_ssize_t d = 0; d < n; d++) {
        for (int which = 0; which < 2; which++) {
            PyObject *of = PyTuple_GET_ITEM(which ? strides : shape, d);
            long long *into = made->numbers + d + which * n;
            if (number(PyNumber_Long(of), into) < 0) {
                Py_DECREF(made);
                return NULL;
            }
            hash = mixed(hash, (size_t)*into);
        }
    }
    made->hash = (Py_hash_t)(hash >> 1);
    return (PyObject *)made;
}

static void
Layout_dealloc(Layout *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_DECREF(self->dtype);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_hash_t
Layout_hash(Layout *self)
{
    return self->hash;
}

static PyObject *
Layout_compare(Layout *self, PyObject *with, int how)
{
    if ((how != Py_EQ && how != Py_NE) || !Py_IS_TYPE(with, LayoutType)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    return PyBool_FromLong(same_layout((PyObject *)self, with) == (how == Py_EQ));
}

int
same_layout(PyObject *one, PyObject *other)
{
    const Layout *a = (const Layout *)one, *b = (const Layout *)other;
    return a == b
           || (a->hash == b->hash && a->lo == b->lo && a->hi == b->hi && a->dense == b->dense && a->offset == b->offset
               && a->dtype == b->dtype && Py_SIZE(a) == Py_SIZE(b)
               && memcmp(a->numbers, b->numbers, (size_t)Py_SIZE(a) * sizeof(long long)) == 0);
}

static PyObject *
numbers_in(Layout *self, void *second)
{
    Py_ssize_t n = Py_SIZE(self) / 2;
    const long long *from = self->numbers + (second == NULL ? 0 : n);
    PyObject *made = PyTuple_New(n);
    for (Py_ssize_t i = 0; made != NULL && i < n; i++) {
        PyObject *one = PyLong_FromLongLong(from[i]);
        if (one == NULL) {
            Py_CLEAR(made);
            break;
        }
        PyTuple_SET_ITEM(made, i, one);
    }
    return made;
}

static PyObject *
Layout_repr(Layout *self)
{
    PyObject *shape = numbers_in(self, NULL), *strides = numbers_in(self, self), *text = NULL;
    if (shape != NULL && strides != NULL) {
        text = PyUnicode_FromFormat("Layout(lo=%lld, hi=%lld, dense=%s, offset=%lld, shape=%R, strides=%R, dtype=%R)",
                                    self->lo, self->hi, self->dense ? "True" : "False", self->offset, shape, strides,
                                    self->dtype);
    }
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    return text;
}

static PyMemberDef members[] = {
    {"lo", T_LONGLONG, offsetof(Layout, lo), READONLY, NULL},
    {"hi", T_LONGLONG, offsetof(Layout, hi), READONLY, NULL},
    {"dense", T_BOOL, offsetof(Layout, dense), READONLY, NULL},
    {"offset", T_LONGLONG, offsetof(Layout, offset), READONLY, NULL},
    {"dtype", T_OBJECT, offsetof(Layout, dtype), READONLY, NULL},
    {NULL},
};

static PyGetSetDef lists[] = {
    {"shape", (getter)numbers_in, NULL, NULL, NULL},
    {"strides", (getter)numbers_in, NULL, NULL, "strides"},
    {NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, Layout_new},       {Py_tp_dealloc, Layout_dealloc},       {Py_tp_hash, Layout_hash},
    {Py_tp_repr, Layout_repr},     {Py_tp_richcompare, Layout_compare},   {Py_tp_members, members},
    {Py_tp_getset, lists},         {0, NULL},
};

static PyType_Spec spec = {
    .name = "gradmend.capture._fast.Layout",
    .basicsize = offsetof(Layout, numbers),
    .itemsize = sizeof(long long),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, /* from which it takes its methods: see grafted() */
    .slots = slots,
};

int
layouts_ready(PyObject *module)
{
    LayoutType = (PyTypeObject *)PyType_FromSpec(&spec);
    return LayoutType == NULL ? -1 : PyModule_AddType(module, LayoutType);
}

PyObject *
know_layouts(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject **kept[] = {&slow_layout};
    return keep_all(args, kept, 1);
}
