/* The edge: what touches CPython's frames and a tensor's memory. No rule of the ledger is here: Python decides, and each
   of these functions has its like in Python (edge.py, sites.py, taps/wrappers.py), which runs where there was no compiler.
   Only CPython's public API is used, and none of torch's headers, so that one build serves every torch. */

#ifndef GRADMEND_NATIVE_H
#define GRADMEND_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

/* What a call returned, and no longer needed: whether it is true; -1 on an error. */
static inline int
truth(PyObject *value)
{
    if (value == NULL) {
        return -1;
    }
    int found = PyObject_IsTrue(value);
    Py_DECREF(value);
    return found;
}

/* The same for a number. */
static inline int
number(PyObject *value, long long *into)
{
    if (value == NULL) {
        return -1;
    }
    *into = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return *into == -1 && PyErr_Occurred() ? -1 : 0;
}

/* An attribute, as its descriptor has it. */
static inline PyObject *
get(PyObject *property, PyObject *owner)
{
    return Py_TYPE(property)->tp_descr_get(property, owner, (PyObject *)Py_TYPE(owner));
}

/* What Python hands over once: each argument into its place. */
static inline PyObject *
keep_all(PyObject *args, PyObject **const *places, size_t n)
{
    if ((size_t)PyTuple_GET_SIZE(args) != n) {
        PyErr_Format(PyExc_TypeError, "%zu arguments, and not %zd", n, PyTuple_GET_SIZE(args));
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        Py_XSETREF(*places[i], Py_NewRef(PyTuple_GET_ITEM(args, (Py_ssize_t)i)));
    }
    Py_RETURN_NONE;
}

/* walk.c */
PyObject *raw_here(PyObject *module, PyObject *unused);
PyObject *know_codes(PyObject *module, PyObject *args);

/* facts.c: what a tensor is */
typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} Element;
typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    Element element;
    int64_t *shape, *strides; /* the tensor's own */
    uint64_t byte_offset;
} DLTensor;
#define PLAIN_CLASSES 2
extern PyTypeObject *plain_classes[PLAIN_CLASSES]; /* those that override nothing */
static inline int
is_plain(PyObject *tensor)
{
    return Py_TYPE(tensor) == plain_classes[0] || Py_TYPE(tensor) == plain_classes[1];
}
int facts_of(PyObject *tensor, DLTensor *facts); /* 0 where torch or the tensor can't tell */
int readable(const DLTensor *facts);             /* whether its memory can be read from here */
long long item_of(const DLTensor *facts);
int in_a_row(const DLTensor *facts, long long *count); /* whether its elements lie so, and how many they are */
PyObject *layout_of(PyObject *module, PyObject *tensor);
PyObject *know_layouts(PyObject *module, PyObject *callable);
PyObject *layout_at(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *know_facts(PyObject *module, PyObject *args);

/* memory.c: its bytes */
PyObject *place(PyObject *module, PyObject *tensor);
PyObject *places(PyObject *module, PyObject *params);
PyObject *version_of(PyObject *module, PyObject *tensor);
PyObject *copy_out(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *fill(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *same_bytes(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *ref(PyObject *module, PyObject *object);
PyObject *know_memory(PyObject *module, PyObject *args);

/* tap.c, functions.c, overloads.c */
extern PyTypeObject TapType, FunctionType, OverloadsType;
int functions_ready(void);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
