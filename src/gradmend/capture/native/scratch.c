/* Tensors that old values are handed out in, used again once backward has let go of them: a new one for each would be
   the dearest part of healing a small tensor. */

#include "ledger.h"

#define SLOTS 2 /* a product's node holds two at a time */

/* What Python hands over once. */
static PyObject *empty_like, *address_of, *uses_of, *storage_uses_of, *is_inference;

static struct {
    PyObject *tensor, *storage;
    PyObject *key; /* of the storage */
    Layout *form;
    char *memory;
    long long at_rest, refs_at_rest; /* how often its storage is held while nobody else does: in C++, in Python */
} slots[SLOTS];
static int next;

/* Whether a tensor of the one layout does for the other: all but its place in a storage. */
static int
alike(const Layout *a, const Layout *b)
{
    return a == b
           || (a->dtype == b->dtype && Py_SIZE(a) == Py_SIZE(b)
               && memcmp(a->numbers, b->numbers, (size_t)Py_SIZE(a) * sizeof(long long)) == 0);
}

/* Whether neither the tensor nor its memory is held by anybody, be it from Python or from C++. */
static int
is_free(int i)
{
    long long holders;
    if (Py_REFCNT(slots[i].tensor) != 1 || Py_REFCNT(slots[i].storage) != slots[i].refs_at_rest
        || number(PyObject_CallOneArg(uses_of, slots[i].tensor), &holders) < 0 || holders != 1)
    {
        return 0;
    }
    return number(PyObject_CallOneArg(storage_uses_of, slots[i].key), &holders) == 0 && holders == slots[i].at_rest;
}

static void
forget(int i)
{
    Py_CLEAR(slots[i].tensor);
    Py_CLEAR(slots[i].storage);
    Py_CLEAR(slots[i].key);
    Py_CLEAR(slots[i].form);
}

/* A new one, which takes the place of the older of those we have. */
static PyObject *
made_like(PyObject *handle, Layout *layout, char **memory)
{
    long long address;
    PyObject *made = PyObject_CallOneArg(empty_like, handle);
    if (made == NULL || number(PyObject_CallOneArg(address_of, made), &address) < 0 || address == 0) {
        Py_XDECREF(made);
        return NULL;
    }
    *memory = (char *)(Py_ssize_t)address;
    if (uses_of == Py_None || storage_uses_of == Py_None) {
        return made;
    }
    int i = next, marked = truth(PyObject_CallOneArg(is_inference, made));
    forget(i);
    if (marked == 0 /* else it could not be saved anew */ && (slots[i].storage = storage_of(made)) != NULL
        && (slots[i].key = key_in(slots[i].storage)) != NULL
        && number(PyObject_CallOneArg(storage_uses_of, slots[i].key), &slots[i].at_rest) == 0)
    {
        slots[i].refs_at_rest = Py_REFCNT(slots[i].storage);
        slots[i].tensor = Py_NewRef(made);
        slots[i].form = (Layout *)Py_NewRef((PyObject *)layout);
        slots[i].memory = *memory;
        next = (i + 1) % SLOTS;
    }
    if (PyErr_Occurred()) {
        Py_CLEAR(made);
    }
    return made;
}

PyObject *
scratch_like(PyObject *handle, Layout *layout, char **memory)
{
    for (int i = 0; i < SLOTS; i++) {
        if (slots[i].tensor != NULL && alike(slots[i].form, layout) && is_free(i)) {
            *memory = slots[i].memory;
            return Py_NewRef(slots[i].tensor);
        }
    }
    return PyErr_Occurred() ? NULL : made_like(handle, layout, memory);
}

PyObject *
know_scratch(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject **kept[] = {&empty_like, &address_of, &uses_of, &storage_uses_of, &is_inference};
    return keep_all(args, kept, sizeof(kept) / sizeof(*kept));
}
