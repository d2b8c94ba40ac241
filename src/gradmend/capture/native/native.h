/* The compiled part of gradmend.capture: what runs most often while a program trains. Everything here has its like in
   Python, beside which it is tested, and which runs where there was no compiler. Only CPython's public API is used, and
   none of torch's headers, so that one build serves every torch. */

#ifndef GRADMEND_NATIVE_H
#define GRADMEND_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

/* For what is rare, so that what is not stays short: it runs once among a thousand other things, and each line of the
   processor's cache that it takes was somebody else's. */
#if defined(__GNUC__)
#define RARE __attribute__((noinline, cold))
#else
#define RARE
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

/* Names of attributes and methods, made once. */
typedef struct {
    PyObject **name;
    const char *text;
} Name;

static inline int
intern(const Name *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (*names[i].name == NULL && (*names[i].name = PyUnicode_InternFromString(names[i].text)) == NULL) {
            return -1;
        }
    }
    return 0;
}
#define INTERN(names) intern(names, sizeof(names) / sizeof(*(names)))

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
PyObject *walk(long depth); /* the call chain, `depth` - 1 frames above the running one and up */
PyObject *raw_here(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *know_codes(PyObject *module, PyObject *args);

/* facts.c */
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
int readable(const DLTensor *facts); /* whether its memory can be read from here */
long long item_of(const DLTensor *facts);
int in_a_row(const DLTensor *facts, long long *count); /* whether its elements lie so, and how many they are */
PyObject *dtype_in(PyObject *tensor, const DLTensor *facts); /* borrowed */
PyObject *know_facts(PyObject *module, PyObject *args);

/* storages.c */
PyObject *storage_of(PyObject *tensor);
PyObject *key_in(PyObject *storage); /* a number by which it is known while it lives */
PyObject *key_of(PyObject *tensor);
int bytes_in(PyObject *storage, long long *bytes);
int address_in(PyObject *storage, long long *address);
int is_its_own(PyObject *storage); /* whether nobody but torch holds its memory */
PyObject *know_storages(PyObject *module, PyObject *args);

/* records.c */
typedef struct {
    void *address;
    long long bytes, version;
} Spot;
extern PyTypeObject RecordedType;
PyObject *record_of(PyObject *op, PyObject *how, Py_ssize_t room); /* empty, for so many tensors */
/* 1: done; 0: Python must look; -1: an error. */
int record_adds(PyObject *record, PyObject *tensor);
int record_steps(PyObject *record, PyObject *params); /* those in a list that have a gradient */
int record_ends(PyObject *record, PyObject *append, PyObject *clock);
PyObject *version_of(PyObject *tensor);
PyObject *place(PyObject *module, PyObject *tensor);
PyObject *places(PyObject *module, PyObject *params);
PyObject *know_tensors(PyObject *module, PyObject *args);

/* recorder.c */
extern PyObject *ring;                                   /* append() of the recorder's ring, while it is on */
int note(PyObject *op, PyObject *how, PyObject *tensor); /* 1: recorded; 0: Python must look; -1: an error */
PyObject *call_recorded(PyObject *original, PyObject *told, PyObject *op, PyObject *how, PyObject *const *args,
                        size_t nargsf, PyObject *kwnames);
PyObject *note_in_python(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *record_to(PyObject *module, PyObject *args);

/* steps.c */
PyObject *before_step(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *after_step(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *steps_to(PyObject *module, PyObject *args);
PyObject *know_steps(PyObject *module, PyObject *args);

/* tap.c */
extern PyTypeObject TapType;
int tap_ready(void);
PyObject *know_taps(PyObject *module, PyObject *args);

/* fields.c */
int fields_ready(PyObject *module);

/* functions.c */
extern PyTypeObject FunctionType;
int functions_ready(void);

/* overloads.c */
extern PyTypeObject OverloadsType;

/* calls.c */
typedef struct {
    PyObject_HEAD
    long long tick;
    PyObject *raw;
    PyObject *roots; /* NULL: one, `root` */
    long long root;
    char retain;
    unsigned long thread;
    PyObject *outcome;
    PyObject *visited; /* NULL: empty */
    PyObject *seeds;   /* NULL: none */
} Call;

extern Py_ssize_t keeping_nodes; /* so many have a `visited` */
Call *call_of(int retain);       /* of this thread, and running */
int is_call(PyObject *one);
PyObject *nodes_of(Call *call); /* its `visited`, borrowed */
void forget_nodes(Call *call);
int calls_ready(PyObject *module);

/* backwards.c */
PyObject *backward(PyObject *module, PyObject *state);
PyObject *hear_backwards(PyObject *module, PyObject *args);
PyObject *know_backwards(PyObject *module, PyObject *args);

/* saves.c */
int saves_ready(void);
PyObject *pack(PyObject *module, PyObject *tensor);
PyObject *unpack(PyObject *module, PyObject *packed);
PyObject *know_saves(PyObject *module, PyObject *args);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
