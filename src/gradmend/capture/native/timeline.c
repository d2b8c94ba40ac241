/* Saves enter the timelines of their storages, and leave them: ledger.py and entries.py have the same in Python. */

#include "ledger.h"

#define FEW_BYTES (1 << 16) /* as undo.py */
#define FEW_RECORDS 1024

static PyObject *nested_property, *no_undo;
/* Names. */
static PyObject *new_timeline, *doze, *open_up, *tidy;

long long
tick_of(Ledger *ledger)
{
    return ++ledger->ticks;
}

/* While we hold the lock, a Save that dies waits to be buried. */
void
ledger_lock(Ledger *ledger)
{
    lock_take((Lock *)ledger->lock, 1);
    ledger->busy++;
}

void
ledger_unlock(Ledger *ledger)
{
    ledger->busy--;
    lock_release((Lock *)ledger->lock);
}

/* ------------------------------------------------------------------------------------------------------- entering */

static Timeline *
timeline_for(Ledger *ledger, PyObject *handle)
{
    PyObject *key = key_of(handle), *found = NULL;
    if (key != NULL && (found = PyDict_GetItemWithError(ledger->timelines, key)) != NULL) {
        Py_INCREF(found);
    }
    else if (key != NULL && !PyErr_Occurred()) {
        found = PyObject_CallMethodOneArg((PyObject *)ledger, new_timeline, key);
    }
    Py_XDECREF(key);
    return (Timeline *)found;
}

static void
enter(Timeline *timeline, Entry *entry)
{
    Py_XSETREF(entry->timeline, Py_NewRef(timeline));
    roll_add((Roll *)timeline->fresh, entry);
    if (entry->tick > timeline->newest) {
        timeline->newest = entry->tick;
    }
}

/* Enter the Saves made since the last Write into the timelines of their storages. */
int
ledger_settle(Ledger *ledger)
{
    Entry *entry;
    while ((entry = roll_first((Roll *)ledger->fresh)) != NULL) {
        int nested = truth(get(nested_property, entry->handle));
        if (nested > 0) { /* no region of its own: PyTorch's counter is all there is to go by */
            roll_leave(entry);
            Py_DECREF(entry);
            continue;
        }
        Timeline *timeline = nested < 0 ? NULL : timeline_for(ledger, entry->handle);
        if (timeline != NULL) {
            enter(timeline, entry);
            Py_DECREF(timeline);
        }
        Py_DECREF(entry);
        if (timeline == NULL) {
            return -1;
        }
    }
    if (PyDict_GET_SIZE(ledger->timelines) == 0) {
        PyObject *none = PyObject_CallMethodNoArgs((PyObject *)ledger, doze);
        Py_XDECREF(none);
        return none == NULL ? -1 : 0;
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------------- settling */

static int
settle_one(Timeline *timeline, Entry *entry)
{
    if (missing(entry->layout)) {
        PyObject *layout = layout_of(NULL, entry->handle);
        if (layout == NULL) {
            return -1;
        }
        Py_XSETREF(entry->layout, layout);
        if (index_add((LayoutIndex *)timeline->index, layout) < 0) {
            return -1;
        }
    }
    Counter *counter = counter_of(timeline, entry);
    if (counter == NULL) {
        return -1;
    }
    Py_XSETREF(entry->counter, Py_NewRef(counter));
    entry->standing = entry->version - counter->credited;
    return 0;
}

/* Index the Saves made since the last Write, and find the version counter of each. */
int
timeline_settle(Timeline *timeline)
{
    if (timeline->undo == no_undo) {
        PyObject *none = PyObject_CallMethodNoArgs((PyObject *)timeline, open_up);
        Py_XDECREF(none);
        if (none == NULL) {
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(timeline->gone); i++) {
        if (index_remove((LayoutIndex *)timeline->index, PyList_GET_ITEM(timeline->gone, i)) < 0) {
            return -1;
        }
    }
    if (PyList_GET_SIZE(timeline->gone)
        && PyList_SetSlice(timeline->gone, 0, PyList_GET_SIZE(timeline->gone), NULL) < 0)
    {
        return -1;
    }
    Entry *entry;
    while ((entry = roll_first((Roll *)timeline->fresh)) != NULL) {
        int failed = settle_one(timeline, entry);
        roll_add((Roll *)timeline->live, entry);
        Py_DECREF(entry);
        if (failed) {
            return -1;
        }
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------------------- dying */

Py_ssize_t
living(Timeline *timeline)
{
    return on_roll(timeline->live) + on_roll(timeline->fresh);
}

/* A Save died: drop what only it needed, now and then all at once. */
static int
forget(Timeline *timeline, PyObject *layout)
{
    if (layout != Py_None && PyList_Append(timeline->gone, layout) < 0) {
        return -1;
    }
    timeline->deaths++;
    Py_ssize_t left = living(timeline);
    UndoLog *undo = (UndoLog *)timeline->undo;
    if (left && timeline->deaths > 16 + 2 * left
        && (undo->nbytes > FEW_BYTES || PyList_GET_SIZE(undo->records) > FEW_RECORDS))
    {
        PyObject *none = PyObject_CallMethodNoArgs((PyObject *)timeline, tidy);
        Py_XDECREF(none);
        return none == NULL ? -1 : 0;
    }
    return 0;
}

/* Take a timeline without Saves out of the ledger. */
int
close_timeline(Ledger *ledger, Timeline *timeline)
{
    PyObject *key = PyLong_FromLongLong(timeline->key);
    if (key == NULL) {
        return -1;
    }
    int failed = 0;
    if (PyDict_GetItemWithError(ledger->timelines, key) == (PyObject *)timeline) {
        failed = PyDict_DelItem(ledger->timelines, key);
    }
    Py_DECREF(key);
    return failed || PyErr_Occurred() ? -1 : 0;
}

/* What a dead Save leaves behind, under the lock. */
static int
bury_one(Ledger *ledger, Timeline *timeline, PyObject *layout)
{
    return forget(timeline, layout) < 0 || (living(timeline) == 0 && close_timeline(ledger, timeline) < 0) ? -1 : 0;
}

/* The lock, or 0: this may run in a destructor, so it never waits nor re-enters. */
static int
begin_burial(Ledger *ledger)
{
    if (ledger->busy || !lock_take((Lock *)ledger->lock, 0)) {
        return 0;
    }
    ledger->busy++;
    return 1;
}

static int
end_burial(Ledger *ledger, int failed)
{
    if (!failed && PyDict_GET_SIZE(ledger->timelines) == 0 && on_roll(ledger->fresh) == 0) {
        PyObject *none = PyObject_CallMethodNoArgs((PyObject *)ledger, doze);
        failed = none == NULL ? -1 : 0;
        Py_XDECREF(none);
    }
    ledger_unlock(ledger);
    return failed;
}

/* Take dead Saves out. */
int
ledger_bury(Ledger *ledger)
{
    if (!begin_burial(ledger)) {
        return 0;
    }
    int failed = 0;
    while (PyList_GET_SIZE(ledger->dead) && !failed) {
        PyObject *batch = PyList_GetSlice(ledger->dead, 0, PyList_GET_SIZE(ledger->dead));
        if (batch == NULL || PyList_SetSlice(ledger->dead, 0, PyList_GET_SIZE(batch), NULL) < 0) {
            Py_XDECREF(batch);
            failed = -1;
            break;
        }
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(batch) && !failed; i++) {
            PyObject *death = PyList_GET_ITEM(batch, i);
            failed = bury_one(ledger, (Timeline *)PyTuple_GET_ITEM(death, 0), PyTuple_GET_ITEM(death, 1));
        }
        Py_DECREF(batch);
    }
    return end_burial(ledger, failed ? -1 : 0);
}

int
entry_died(Entry *entry)
{
    Timeline *timeline = (Timeline *)entry->timeline;
    if (missing(timeline->ledger)) {
        return 0;
    }
    Ledger *ledger = (Ledger *)timeline->ledger;
    PyObject *layout = missing(entry->layout) ? Py_None : entry->layout;
    if (PyList_GET_SIZE(ledger->dead) == 0 && begin_burial(ledger)) {
        return end_burial(ledger, bury_one(ledger, timeline, layout));
    }
    PyObject *death = PyTuple_Pack(2, timeline, layout);
    int failed = death == NULL || PyList_Append(ledger->dead, death) < 0;
    Py_XDECREF(death);
    return failed ? -1 : ledger_bury(ledger);
}

/* ---------------------------------------------------------------------------------------------------------- to Python */

static PyObject *
done(int failed)
{
    if (failed < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static int
is(PyObject *one, PyTypeObject *type)
{
    if (PyObject_TypeCheck(one, type)) {
        return 1;
    }
    PyErr_Format(PyExc_TypeError, "not a %s: %R", type->tp_name, one);
    return 0;
}

PyObject *
tick(PyObject *Py_UNUSED(module), PyObject *ledger)
{
    return is(ledger, LedgerType) ? PyLong_FromLongLong(tick_of((Ledger *)ledger)) : NULL;
}

PyObject *
settle(PyObject *Py_UNUSED(module), PyObject *ledger)
{
    if (!is(ledger, LedgerType)) {
        return NULL;
    }
    ledger_lock((Ledger *)ledger);
    int failed = ledger_settle((Ledger *)ledger);
    ledger_unlock((Ledger *)ledger);
    return done(failed);
}

PyObject *
settle_timeline(PyObject *Py_UNUSED(module), PyObject *timeline)
{
    return is(timeline, TimelineType) ? done(timeline_settle((Timeline *)timeline)) : NULL;
}

PyObject *
bury(PyObject *Py_UNUSED(module), PyObject *ledger)
{
    return is(ledger, LedgerType) ? done(ledger_bury((Ledger *)ledger)) : NULL;
}

PyObject *
know_timelines(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject **kept[] = {&nested_property, &no_undo};
    Name names[] = {
        {&new_timeline, "_timeline"},
        {&doze, "_doze"},   {&open_up, "open"},    {&tidy, "tidy"},
    };
    return INTERN(names) < 0 ? NULL : keep_all(args, kept, sizeof(kept) / sizeof(*kept));
}
