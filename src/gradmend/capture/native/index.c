/* Which layouts live Saves need: LayoutIndex in regions.py has the same in Python, and finds them by their bytes. */

#include "ledger.h"

static PyObject *rebuild; /* a name */

int
index_ready(void)
{
    Name names[] = {{&rebuild, "rebuild"}};
    return INTERN(names);
}

int
index_add(LayoutIndex *index, PyObject *layout)
{
    static PyObject *one;
    if (one == NULL && (one = PyLong_FromLong(1)) == NULL) {
        return -1;
    }
    Py_ssize_t known = PyDict_GET_SIZE(index->counts);
    PyObject *seen = PyDict_SetDefault(index->counts, layout, one);
    if (seen == NULL) {
        return -1;
    }
    if (PyDict_GET_SIZE(index->counts) == known) {
        PyObject *more = PyNumber_Add(seen, one);
        int failed = more == NULL || PyDict_SetItem(index->counts, layout, more) < 0;
        Py_XDECREF(more);
        return failed ? -1 : 0;
    }
    if (PySet_GET_SIZE(index->gone)) {
        int there = PySet_Discard(index->gone, layout);
        if (there) {
            return there < 0 ? -1 : 0;
        }
    }
    if (PyList_Append(index->unsorted, layout) < 0) {
        return -1;
    }
    const Layout *added = (const Layout *)layout;
    if (added->lo < index->lo) {
        index->lo = added->lo;
    }
    if (added->hi > index->hi) {
        index->hi = added->hi;
    }
    return 0;
}

int
index_remove(LayoutIndex *index, PyObject *layout)
{
    PyObject *seen = PyDict_GetItemWithError(index->counts, layout);
    if (seen == NULL) {
        if (!PyErr_Occurred()) {
            PyErr_SetObject(PyExc_KeyError, layout);
        }
        return -1;
    }
    long long left = PyLong_AsLongLong(seen) - 1;
    if (left) {
        PyObject *less = PyLong_FromLongLong(left);
        int failed = less == NULL || PyDict_SetItem(index->counts, layout, less) < 0;
        Py_XDECREF(less);
        return failed ? -1 : 0;
    }
    if (PyDict_DelItem(index->counts, layout) < 0 || PySet_Add(index->gone, layout) < 0) {
        return -1;
    }
    if (PySet_GET_SIZE(index->gone) > 16 + PyDict_GET_SIZE(index->counts)) {
        PyObject *none = PyObject_CallMethodNoArgs((PyObject *)index, rebuild);
        Py_XDECREF(none);
        return none == NULL ? -1 : 0;
    }
    return 0;
}
