/* The way back: what a Save is worth that was written, where one Record holds it all, or no byte of it changed. verdict.py
   has the same in Python, and judges whatever was not judged before. */

#include "ledger.h"

#include <stddef.h>

/* What Python hands over once. */
static PyObject *is_neg, *is_conj, *overridden;
/* Names. */
static PyObject *healed, *spared, *is_complex;

/* The first of a list after a tick, borrowed: Records of all regions, or Writes. */
static PyObject *
first_after(PyObject *list, size_t where, long long tick)
{
    Py_ssize_t lo = 0, hi = PyList_GET_SIZE(list);
    while (lo < hi) {
        Py_ssize_t middle = (lo + hi) / 2;
        if (*(long long *)((char *)PyList_GET_ITEM(list, middle) + where) > tick) {
            hi = middle;
        }
        else {
            lo = middle + 1;
        }
    }
    return lo < PyList_GET_SIZE(list) ? PyList_GET_ITEM(list, lo) : NULL;
}

/* Whether a tensor like the saved one has just the bytes of its region, in their order: an expanded one has more. */
static int
unrepeated(const Layout *layout)
{
    Py_ssize_t n = Py_SIZE(layout) / 2;
    for (Py_ssize_t d = 0; d < n; d++) {
        if (layout->numbers[d] > 1 && layout->numbers[n + d] == 0) {
            return 0;
        }
    }
    return layout->dense && layout->hi > layout->lo;
}

/* Whether only complex numbers could be conjugated when they are read, as this dtype's are not. */
static int
is_real(PyObject *dtype)
{
    static PyObject *real; /* the last one; torch keeps its dtypes for ever */
    if (dtype == real) {
        return 1;
    }
    int so = truth(PyObject_GetAttr(dtype, is_complex));
    if (so == 0) {
        real = dtype;
    }
    return so < 0 ? -1 : !so;
}

/* Conjugated or negated when it is read, or under a mode that would see what is done here. */
static int
special(PyObject *handle, const Layout *layout)
{
    int real = is_real(layout->dtype);
    if (real <= 0) {
        int so = real < 0 ? -1 : truth(PyObject_CallOneArg(is_conj, handle));
        if (so) {
            return so;
        }
    }
    int so = truth(PyObject_CallOneArg(overridden, handle));
    return so ? so : truth(PyObject_CallOneArg(is_neg, handle));
}

/* The tally asked for last: a loop comes by the same two lines again and again. */
static struct {
    PyObject *tallies, *saved, *wrote, *tally;
} last;

/* Of a Save and a Write, by their lines; borrowed, and NULL where they were not judged before. */
static PyObject *
tally_of(PyObject *tallies, PyObject *saved, PyObject *wrote)
{
    if (last.tallies == tallies && last.saved == saved && last.wrote == wrote) {
        return last.tally;
    }
    PyObject *key = PyTuple_Pack(2, saved, wrote);
    PyObject *tally = key == NULL ? NULL : PyDict_GetItemWithError(tallies, key);
    Py_XDECREF(key);
    if (tally == NULL || !PyList_CheckExact(tally) || PyList_GET_SIZE(tally) != 3) {
        return NULL;
    }
    PyObject *found[4] = {tallies, saved, wrote, tally}, **kept[4] = {&last.tallies, &last.saved, &last.wrote, &last.tally};
    for (int i = 0; i < 4; i++) {
        Py_XSETREF(*kept[i], Py_NewRef(found[i]));
    }
    return tally;
}

/* verdict.counted(): whether this Save and this Write, by their lines, were judged in full before; then count them. */
static int
counted(PyObject *tallies, PyObject *saved, Written *written)
{
    PyObject *tally = tally_of(tallies, saved, written->raw);
    if (tally == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    long long more[3] = {0, 1, written->kept};
    for (Py_ssize_t i = 1; i < 3; i++) {
        PyObject *sum = PyLong_FromLongLong(PyLong_AsLongLong(PyList_GET_ITEM(tally, i)) + more[i]);
        if (sum == NULL || PyList_SetItem(tally, i, sum) < 0) {
            return -1;
        }
    }
    return 1;
}

/* The old bytes as a tensor; NULL without an error where that takes more than a copy. */
static PyObject *
restored(Entry *entry, Record *record)
{
    Layout *layout = (Layout *)entry->layout;
    char *memory;
    PyObject *value = NULL;
    if (unrepeated(layout) && special(entry->handle, layout) == 0
        && (value = scratch_like(entry->handle, layout, &memory)) != NULL)
    {
        memcpy(memory, PyBytes_AS_STRING(record->old), (size_t)PyBytes_GET_SIZE(record->old));
    }
    return value;
}

/* One more of a kind that is healed: its value. */
static PyObject *
healed_value(Entry *entry, Record *record)
{
    PyObject *tallies = PyObject_GetAttr(entry->scope, healed), *value = NULL;
    if (tallies != NULL && PyDict_CheckExact(tallies) && (value = restored(entry, record)) != NULL
        && counted(tallies, entry->raw, (Written *)record->written) != 1)
    {
        Py_CLEAR(value);
    }
    Py_XDECREF(tallies);
    return value;
}

/* Unchanged: one that PyTorch would not refuse, or one more of a kind that it does. */
static PyObject *
spared_value(Entry *entry, Written *first, long long now)
{
    long long there;
    PyObject *storage = storage_of(entry->handle);
    int failed = storage == NULL || bytes_in(storage, &there) < 0;
    Py_XDECREF(storage);
    if (failed || there < ((Layout *)entry->layout)->hi) {
        return NULL; /* the storage has shrunk */
    }
    if (now == entry->version) {
        return Py_NewRef(entry->handle);
    }
    PyObject *tallies = PyObject_GetAttr(entry->scope, spared);
    int known = tallies == NULL || !PyDict_CheckExact(tallies) ? 0 : counted(tallies, entry->raw, first);
    Py_XDECREF(tallies);
    return known == 1 ? Py_NewRef(entry->handle) : NULL;
}

/* Of a Save that stands in a timeline: the one Record that holds all of it, else the first Write since. */
static void
what_happened(Entry *entry, Record **record, Written **first)
{
    Timeline *timeline = (Timeline *)entry->timeline;
    ledger_lock((Ledger *)timeline->ledger);
    PyObject *records = ((UndoLog *)timeline->undo)->records;
    *record = (Record *)first_after(records, offsetof(Record, tick), entry->tick);
    *first = *record == NULL ? (Written *)first_after(timeline->log, offsetof(Written, tick), entry->tick) : NULL;
    if (*record != NULL
        && (!missing((*record)->elements) || !PyBytes_CheckExact((*record)->old)
            || !same_layout((*record)->layout, entry->layout)))
    {
        *record = NULL;
    }
    Py_XINCREF(*record);
    Py_XINCREF(*first);
    ledger_unlock((Ledger *)timeline->ledger);
}

/* What a Save is worth that was written, or whose neighbours were, where its kind was judged in full before. */
PyObject *
known_value(Entry *entry, long long now)
{
    if (missing(entry->timeline) || missing(entry->layout) || !missing(entry->print) || entry->unchecked
        || PyTuple_GET_SIZE(entry->swaps) || overridden == NULL || uncredited(entry, now))
    {
        return NULL;
    }
    Record *record;
    Written *first;
    what_happened(entry, &record, &first);
    PyObject *value = record != NULL ? healed_value(entry, record) : first != NULL ? spared_value(entry, first, now) : NULL;
    Py_XDECREF(record);
    Py_XDECREF(first);
    return value;
}

/* To Python: the saved bytes as they were, where one Record holds them all; None where it must look itself. */
PyObject *
exact_value(PyObject *Py_UNUSED(module), PyObject *saved)
{
    Entry *entry = (Entry *)saved;
    if (!PyObject_TypeCheck(saved, EntryType) || missing(entry->timeline) || missing(entry->layout) || overridden == NULL)
    {
        Py_RETURN_NONE;
    }
    Record *record;
    Written *first;
    what_happened(entry, &record, &first);
    PyObject *value = record == NULL ? NULL : restored(entry, record);
    Py_XDECREF(record);
    Py_XDECREF(first);
    return value != NULL || PyErr_Occurred() ? value : Py_NewRef(Py_None);
}

/* To Python: whether two tensors of one shape, without gaps, hold the same bytes; None where it must look itself. */
PyObject *
same_bytes(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    DLTensor a, b;
    long long count;
    if (nargs != 2 || !facts_of(args[0], &a) || !facts_of(args[1], &b) || !readable(&a) || !readable(&b)
        || a.ndim != b.ndim || memcmp(&a.element, &b.element, sizeof(a.element))
        || memcmp(a.shape, b.shape, (size_t)a.ndim * sizeof(int64_t)) || !in_a_row(&a, &count) || !in_a_row(&b, &count))
    {
        Py_RETURN_NONE;
    }
    return PyBool_FromLong(memcmp(a.data, b.data, (size_t)(count * item_of(&a))) == 0);
}

PyObject *
know_values(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject **kept[] = {&is_neg, &is_conj, &overridden};
    Name names[] = {{&healed, "healed"}, {&spared, "spared"}, {&is_complex, "is_complex"}};
    return INTERN(names) < 0 ? NULL : keep_all(args, kept, sizeof(kept) / sizeof(*kept));
}
