#include "native.h"

static PyMethodDef methods[] = {
    {"raw_here", raw_here, METH_NOARGS, "The call chain above, ours left out, as a flat tuple (code, lasti, ...)."},
    {"know_codes", know_codes, METH_VARARGS, "Who owns a code object, and how far to walk."},
    {"know_quiet", know_quiet, METH_O, "Whose writes are passed on: a set of the ids of globals."},
    {"layout_of", layout_of, METH_O, "What was made of a tensor's (offset, dtype, shape, strides); None: Python must ask."},
    {"layout_at", (PyCFunction)(void (*)(void))layout_at, METH_FASTCALL, "The same of tensor[key]."},
    {"know_layouts", know_layouts, METH_O, "What makes it, at the first time."},
    {"copy_out", (PyCFunction)(void (*)(void))copy_out, METH_FASTCALL, "Bytes lo to hi of a storage; None: unreadable."},
    {"fill", (PyCFunction)(void (*)(void))fill, METH_FASTCALL, "Bytes into a new tensor without gaps; False: it can't."},
    {"places", places, METH_O, "Address, size and version of each tensor, as bytes; None: Python must look."},
    {"version", version_of, METH_O, "Of a tensor's counter."},
    {"ref", ref, METH_O, "A weak reference."},
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
