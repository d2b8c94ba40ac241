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

#define MIXER 0x9E3779B97F4A7C15ull /* of hashes: an odd number without a pattern */

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

/* For those that a thing owned: it goes. */
static inline void
drop_all(PyObject *const *owned, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        Py_XDECREF(owned[i]);
    }
}

/* walk.c */
PyObject *raw_here(PyObject *module, PyObject *unused);
PyObject *know_codes(PyObject *module, PyObject *args);
PyObject *know_quiet(PyObject *module, PyObject *set);
int passed_on(PyObject *awake);

/* Whether nobody would hear of a write that a tap is called for. */
static inline int
nobody(PyObject *awake)
{
    return PySet_GET_SIZE(awake) == 0 || passed_on(awake);
}

/* facts.c: what a tensor is */
extern PyTypeObject *plain_classes[2]; /* those that override nothing */
static inline int
is_plain(PyObject *tensor)
{
    return Py_TYPE(tensor) == plain_classes[0] || Py_TYPE(tensor) == plain_classes[1];
}
PyObject *layout_of(PyObject *module, PyObject *tensor);
PyObject *know_layouts(PyObject *module, PyObject *callable);
PyObject *copy_out(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *layout_at(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *places(PyObject *module, PyObject *tensors);
PyObject *version_of(PyObject *module, PyObject *tensor);
PyObject *ref(PyObject *module, PyObject *object);
PyObject *fill(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *know_facts(PyObject *module, PyObject *args);

/* tap.c, functions.c */
extern PyTypeObject TapType, FunctionType;
int functions_ready(void);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
