/* gradmend.capture._fast: what runs most often while a program trains, for a machine that has a compiler. */

#include "ledger.h"

static PyMethodDef functions[] = {
    {"raw_here", (PyCFunction)(void (*)(void))raw_here, METH_FASTCALL, "The call chain above the caller."},
    {"place", place, METH_O, "(address, bytes, None, version) of a tensor without gaps; None for any other."},
    {"places", places, METH_O, "The places of the parameters that have a gradient; None where one has gaps."},
    {"note", (PyCFunction)(void (*)(void))note_in_python, METH_FASTCALL,
     "note(op, how, tensor): leave a record of this write; False where Python must do it."},
    {"record_to", record_to, METH_VARARGS, "record_to(append, clock): where taps leave records; (None, None) ends it."},
    {"know_codes", know_codes, METH_VARARGS, "know_codes(meet, own, user, most_frames, most_users), for raw_here()."},
    {"know_tensors", know_tensors, METH_VARARGS,
     "know_tensors(is_contiguous, data_ptr, nbytes, _version, grad) of TensorBase, for place() and places()."},
    {"know_facts", know_facts, METH_VARARGS,
     "know_facts(exchange, dtype, plain): DLPack's table of torch, or None; whether it can be used."},
    {"know_storages", know_storages, METH_VARARGS,
     "know_storages(untyped_storage of TensorBase, _cdata, nbytes, data_ptr, resizable of StorageBase)."},
    {"before_step", (PyCFunction)(void (*)(void))before_step, METH_FASTCALL, "The hook before an optimizer's step."},
    {"after_step", (PyCFunction)(void (*)(void))after_step, METH_FASTCALL, "The hook after it."},
    {"steps_to", steps_to, METH_VARARGS, "steps_to(append, clock, slow): an ear that records an optimizer's step."},
    {"know_steps", know_steps, METH_VARARGS, "know_steps(awake, asleep, stepped, overridden, a_tensor)."},
    {"backward", backward, METH_O, "backward([original, live]): the engine's entry, with a record of each call."},
    {"hear_backwards", hear_backwards, METH_VARARGS, "hear_backwards(before, after, failed, when, then)."},
    {"know_backwards", know_backwards, METH_VARARGS, "What backward() works on: see backwards.py."},
    {"pack", pack, METH_O, "The hook by which a Save is entered."},
    {"unpack", unpack, METH_O, "The hook by which backward asks for a Save."},
    {"know_saves", know_saves, METH_VARARGS, "What pack() and unpack() work on: see saves.py."},
    {"layout_of", layout_of, METH_O, "Which bytes of its storage a tensor covers."},
    {"know_grids", know_grids, METH_VARARGS, "know_grids(shape, dtype, stride, storage_offset) of TensorBase."},
    {"know_layouts", know_layouts, METH_VARARGS, "What layout_of() works with: see regions.py."},
    {"tick", tick, METH_O, "tick(ledger): the next of its clock."},
    {"settle", settle, METH_O, "settle(ledger): enter the Saves made since the last Write into their timelines."},
    {"settle_timeline", settle_timeline, METH_O, "Index the Saves of a timeline, and find the counter of each."},
    {"bury", bury, METH_O, "bury(ledger): take dead Saves out."},
    {"know_timelines", know_timelines, METH_VARARGS, "What the three above work with: see entries.py."},
    {"know_counters", know_counters, METH_VARARGS, "What tells counters apart: see entries.py."},
    {"know_writes", know_writes, METH_VARARGS, "What a plain Write works with: see ledger.py."},
    {"exact_value", exact_value, METH_O, "What a Save was worth, where one Record holds all of it; else None."},
    {"same_bytes", (PyCFunction)(void (*)(void))same_bytes, METH_FASTCALL,
     "Whether two tensors without gaps are equal bit by bit; None where Python must look."},
    {"know_values", know_values, METH_VARARGS, "What gives old values back: see verdict.py."},
    {"know_scratch", know_scratch, METH_VARARGS, "What old values are handed out in is made with: see verdict.py."},
    {"know_taps", know_taps, METH_VARARGS, "What a tap works with: see wrappers.py."},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "gradmend.capture._fast",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit__fast(void)
{
    if (tap_ready() < 0 || saves_ready() < 0 || writes_ready() < 0 || index_ready() < 0 || functions_ready() < 0
        || PyType_Ready(&OverloadsType) < 0 || PyType_Ready(&RecordedType) < 0)
    {
        return NULL;
    }
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && (PyModule_AddObjectRef(made, "Tap", (PyObject *)&TapType) < 0
                         || PyModule_AddObjectRef(made, "Function", (PyObject *)&FunctionType) < 0
                         || PyModule_AddObjectRef(made, "Overloads", (PyObject *)&OverloadsType) < 0
                         || PyModule_AddType(made, &LockType) < 0 || fields_ready(made) < 0 || layouts_ready(made) < 0
                         || calls_ready(made) < 0))
    {
        Py_CLEAR(made);
    }
    return made;
}
