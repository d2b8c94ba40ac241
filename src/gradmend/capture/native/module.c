#include "native.h"

static PyMethodDef methods[] = {
    {"raw_here", raw_here, METH_NOARGS, "The call chain above, ours left out, as a flat tuple (code, lasti, ...)."},
    {"know_codes", know_codes, METH_VARARGS, "Who owns a code object, and how far to walk."},
    {"grid", grid, METH_O, "(offset, dtype, shape, strides) of a tensor; None: Python must ask."},
    {"grid_at", (PyCFunction)(void (*)(void))grid_at, METH_FASTCALL, "The same of tensor[key]."},
    {"fill", (PyCFunction)(void (*)(void))fill, METH_FASTCALL, "Bytes into a new tensor without gaps; False: it can't."},
    {"know_facts", know_facts, METH_VARARGS, "By which means a tensor is asked."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "gradmend.capture.native._edge",
    .m_doc = "The compiled edge of gradmend.capture.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__edge(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL || functions_ready() < 0 || PyModule_AddType(module, &TapType) < 0
        || PyModule_AddType(module, &FunctionType) < 0)
    {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
