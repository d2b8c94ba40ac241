/* The way back: what a Save is worth that was written, where one Record holds it all, or no byte of it changed. verdict.py
   has the same in Python, and judges whatever was not judged before. */

#include "ledger.h"

#include <stddef.h>

/* What Python hands over once. */
static PyObject *storage_of, *storage_bytes, *is_neg, *is_conj, *empty_like, *address_of, *nbytes_of, *overridden;
/* Names. */
static PyObject *healed, *spared;

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

/* A tensor like the handle with these bytes. */
static PyObject *
filled(PyObject *handle, PyObject *old)
{
    long long address;
    PyObject *made = PyObject_CallOneArg(empty_like, handle);
    if (made == NULL || number(PyObject_CallOneArg(address_of, made), &address) < 0 || address == 0) {
        Py_XDECREF(made);
        return NULL;
    }
    memcpy((void *)(Py_ssize_t)address, PyBytes_AS_STRING(old), (size_t)PyBytes_GET_SIZE(old));
    return made;
}

/* Whether a tensor like the handle has just the bytes of its region, in their order: an expanded one has more. */
static int
alike(Entry *entry, Record *record)
{
    long long size;
    if (number(get(nbytes_of, entry->handle), &size) < 0) {
        return -1;
    }
    return size > 0 && size == PyBytes_GET_SIZE(record->old) && PyTuple_GET_ITEM(entry->layout, 2) == Py_True;
}

/* Conjugated or negated when it is read, or under a mode that would see what is done here. */
static int
special(PyObject *handle)
{
    PyObject *askers[3] = {is_neg, is_conj, overridden};
    for (int i = 0; i < 3; i++) {
        int so = truth(PyObject_CallOneArg(askers[i], handle));
        if (so) {
            return so;
        }
    }
    return 0;
}

/* verdict.counted(): whether this Save and this Write, by their lines, were judged in full before; then count them. */
static int
counted(PyObject *tallies, PyObject *saved, Written *written)
{
    PyObject *key = PyTuple_Pack(2, saved, written->raw);
    PyObject *tally = key == NULL ? NULL : PyDict_GetItemWithError(tallies, key);
    Py_XDECREF(key);
    if (tally == NULL || !PyList_CheckExact(tally) || PyList_GET_SIZE(tally) != 3) {
        return tally == NULL && PyErr_Occurred() ? -1 : 0;
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

/* One more of a kind that is healed: its value. */
static PyObject *
healed_value(Entry *entry, Record *record)
{
    PyObject *tallies = PyObject_GetAttr(entry->scope, healed), *value = NULL;
    if (tallies != NULL && PyDict_CheckExact(tallies) && special(entry->handle) == 0 && alike(entry, record) == 1
        && counted(tallies, entry->raw, (Written *)record->written) == 1)
    {
        value = filled(entry->handle, record->old);
    }
    Py_XDECREF(tallies);
    return value;
}

/* Unchanged: one that PyTorch would not refuse, or one more of a kind that it does. */
static PyObject *
spared_value(Entry *entry, Written *first)
{
    long long there, now;
    PyObject *storage = PyObject_CallOneArg(storage_of, entry->handle);
    int failed = storage == NULL || number(PyObject_CallOneArg(storage_bytes, storage), &there) < 0;
    Py_XDECREF(storage);
    if (failed || there < PyLong_AsLongLong(PyTuple_GET_ITEM(entry->layout, 1))) {
        return NULL; /* the storage has shrunk */
    }
    if (version_at(entry->handle, &now) < 0) {
        return NULL;
    }
    if (now == entry->version) {
        return Py_NewRef(entry->handle);
    }
    PyObject *tallies = PyObject_GetAttr(entry->scope, spared);
    int known = tallies == NULL || !PyDict_CheckExact(tallies) ? 0 : counted(tallies, entry->raw, first);
    Py_XDECREF(tallies);
    return known == 1 ? Py_NewRef(entry->handle) : NULL;
}

/* What a Save is worth that was written, or whose neighbours were, where its kind was judged in full before. */
PyObject *
known_value(Entry *entry)
{
    if (missing(entry->timeline) || missing(entry->layout) || !missing(entry->print) || entry->unchecked
        || PyTuple_GET_SIZE(entry->swaps) || empty_like == NULL || uncredited(entry))
    {
        return NULL;
    }
    Timeline *timeline = (Timeline *)entry->timeline;
    if (ledger_lock((Ledger *)timeline->ledger) < 0) {
        return NULL;
    }
    PyObject *records = ((UndoLog *)timeline->undo)->records;
    Record *record = (Record *)first_after(records, offsetof(Record, tick), entry->tick);
    Written *first = record == NULL ? (Written *)first_after(timeline->log, offsetof(Written, tick), entry->tick) : NULL;
    Py_XINCREF(record);
    Py_XINCREF(first);
    ledger_unlock((Ledger *)timeline->ledger);
    PyObject *value = NULL;
    if (record != NULL && missing(record->elements) && PyBytes_CheckExact(record->old)
        && PyObject_RichCompareBool(record->layout, entry->layout, Py_EQ) == 1)
    {
        value = healed_value(entry, record);
    }
    else if (first != NULL && !PyErr_Occurred()) {
        value = spared_value(entry, first);
    }
    Py_XDECREF(record);
    Py_XDECREF(first);
    return value;
}

PyObject *
know_values(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject **kept[] = {&storage_of, &storage_bytes, &is_neg,    &is_conj,
                         &empty_like, &address_of,    &nbytes_of, &overridden};
    Name names[] = {{&healed, "healed"}, {&spared, "spared"}};
    return INTERN(names) < 0 ? NULL : keep_all(args, kept, sizeof(kept) / sizeof(*kept));
}
