/* The plain Write: all of one tensor, or what numbers and slices pick of it, in memory of the CPU. hub.py, ledger.py and
   keeping.py have the same in Python, and are asked for everything else. */

#include "ledger.h"

#define MOST_BYTES (1 << 14) /* what is copied here; more is torch's to copy, on all its threads */
#define MOST_WRITES 8192     /* as entries.py */
#define FEW 16               /* Records to look at one by one */

/* What Python hands over once. */
static PyObject *WrittenClass, *RecordClass, *is_cpu, *detach, *getitem,
    *handed_out, *keep;
/* Names. */
static PyObject *check_budget, *reorder, *data_word, *hides;

/* --------------------------------------------------------------------------------------------------------- keeping */

/* Whether a Record of this very region, made since the newest Save, leaves nothing for another to serve. */
static int
hidden(Timeline *timeline, PyObject *layout)
{
    PyObject *records = ((UndoLog *)timeline->undo)->records;
    Py_ssize_t n = PyList_GET_SIZE(records), end = n > FEW ? n - FEW : 0;
    for (Py_ssize_t i = n - 1; i >= end; i--) {
        Record *record = (Record *)PyList_GET_ITEM(records, i);
        if (record->tick <= timeline->newest) {
            return 0;
        }
        if (missing(record->elements) && same_layout(record->layout, layout)) {
            return 1;
        }
    }
    if (end == 0) {
        return 0;
    }
    PyObject *newest = PyLong_FromLongLong(timeline->newest);
    int found = newest == NULL ? -1 : truth(PyObject_CallMethodObjArgs(timeline->undo, hides, layout, newest, NULL));
    Py_XDECREF(newest);
    return found;
}

static int
add_record(UndoLog *undo, Written *written, PyObject *old)
{
    Record *record = (Record *)untracked((PyTypeObject *)RecordClass);
    if (record == NULL) {
        return -1;
    }
    record->written = Py_NewRef(written);
    record->layout = Py_NewRef(written->layout);
    record->old = Py_NewRef(old);
    record->tick = written->tick;
    record->nbytes = written->kept = PyBytes_GET_SIZE(old);
    undo->nbytes += record->nbytes;
    int failed = PyList_Append(undo->records, (PyObject *)record);
    Py_DECREF(record);
    return failed;
}

/* Where its storage begins; 0 where it can't be read. */
static int
memory_of(PyObject *tensor, PyObject *storage, const Grid *grid, const char **memory)
{
    if ((*memory = grid->memory) != NULL) {
        return 1;
    }
    long long address;
    int near = truth(get(is_cpu, tensor));
    if (near <= 0) {
        return near;
    }
    if (address_in(storage, &address) < 0) {
        return -1;
    }
    *memory = (const char *)(Py_ssize_t)address;
    return address != 0;
}

/* The old bytes that live Saves need. 1: they are kept, or nobody needs any; 0: Python must see; -1: an error. */
static int
keep_plainly(Timeline *timeline, PyObject *storage, PyObject *tensor, Written *written, const Grid *grid)
{
    LayoutIndex *index = (LayoutIndex *)timeline->index;
    UndoLog *undo = (UndoLog *)timeline->undo;
    long long lo, hi, there;
    int dense, met = PyDict_Contains(index->counts, written->layout);
    bounds(grid, &lo, &hi, &dense);
    if (met <= 0) {
        return met < 0 ? -1 : lo >= index->hi || hi <= index->lo;
    }
    int served = hidden(timeline, written->layout);
    if (served) {
        return served;
    }
    if (!dense || hi - lo > MOST_BYTES) {
        return 0;
    }
    const char *memory;
    int near = memory_of(tensor, storage, grid, &memory);
    if (near <= 0) {
        return near;
    }
    if (bytes_in(storage, &there) < 0) {
        return -1;
    }
    if (there < hi) {
        return 0;
    }
    PyObject *old = PyBytes_FromStringAndSize(memory + lo, (Py_ssize_t)(hi - lo));
    if (old == NULL) {
        return -1;
    }
    int failed = add_record(undo, written, old);
    Py_DECREF(old);
    return failed < 0 ? -1 : 1;
}

/* keeping.keep(), with a tensor that is just what is written. */
static int
keep_in_python(Timeline *timeline, PyObject *tensor, PyObject *key, Written *written)
{
    PyObject *target = Py_NewRef(tensor);
    if (key != NULL) {
        PyObject *bare = PyObject_CallOneArg(detach, tensor);
        Py_SETREF(target, bare == NULL ? NULL : PyObject_CallFunctionObjArgs(getitem, bare, key, NULL));
        Py_XDECREF(bare);
        if (target == NULL) {
            return -1;
        }
    }
    int kept = truth(PyObject_CallFunctionObjArgs(keep, timeline, target, written, Py_None, Py_False, NULL));
    Py_DECREF(target);
    return kept;
}

/* ------------------------------------------------------------------------------------------------------ the Write */

static Written *
new_written(Ledger *ledger, PyObject *op, PyObject *layout)
{
    PyObject *raw = walk(1);
    Written *written = raw == NULL ? NULL : (Written *)untracked((PyTypeObject *)WrittenClass);
    if (written == NULL) {
        Py_XDECREF(raw);
        return NULL;
    }
    written->tick = tick_of(ledger);
    written->raw = raw;
    written->op = Py_NewRef(op);
    written->how = Py_NewRef(data_word);
    written->layout = Py_NewRef(layout);
    return written;
}

static int
begin(Ledger *ledger, Timeline *timeline, Begun *begun, PyObject *op, PyObject *storage, PyObject *tensor, PyObject *key)
{
    Grid grid;
    int done = grid_of(tensor, &grid);
    if (done <= 0) {
        return done;
    }
    PyObject *layout = NULL;
    Written *written = NULL;
    done = 0;
    if (key != NULL && !grid_at(&grid, key)) {
        goto end;
    }
    done = timeline_settle(timeline);
    if (done < 0 || PyList_GET_SIZE(timeline->counters) > MOST_COUNTERS) {
        goto end;
    }
    done = -1;
    if ((layout = layout_from(&grid)) == NULL || (written = new_written(ledger, op, layout)) == NULL) {
        goto end;
    }
    int kept = keep_plainly(timeline, storage, tensor, written, &grid);
    if (kept == 0) {
        kept = keep_in_python(timeline, tensor, key, written) < 0 ? -1 : 1;
    }
    if (kept < 0) {
        goto end;
    }
    if (written->kept && ledger->budgets) {
        PyObject *none = PyObject_CallMethodObjArgs((PyObject *)ledger, check_budget, timeline, written, NULL);
        if (none == NULL) {
            goto end;
        }
        Py_DECREF(none);
    }
    begun->counters = (int)PyList_GET_SIZE(timeline->counters);
    for (int i = 0; i < begun->counters; i++) {
        if (version_at(((Counter *)PyList_GET_ITEM(timeline->counters, i))->carrier, begun->before + i) < 0) {
            goto end;
        }
    }
    begun->timeline = (Timeline *)Py_NewRef(timeline);
    begun->written = (Written *)Py_NewRef(written);
    done = 1;
end:
    Py_XDECREF(layout);
    Py_XDECREF(written);
    return done;
}

static int
find_and_begin(Ledger *ledger, Begun *begun, PyObject *op, PyObject *tensor, PyObject *key)
{
    PyObject *storage = storage_of(tensor), *at = storage == NULL ? NULL : key_in(storage);
    if (at == NULL) {
        PyErr_Clear(); /* no memory of its own: Python knows what that means */
        Py_XDECREF(storage);
        return 0;
    }
    int done;
    Timeline *timeline = (Timeline *)PyDict_GetItemWithError(ledger->timelines, at);
    Py_DECREF(at);
    if (timeline == NULL) {
        /* Nobody needs it, unless others may lie over the same memory. */
        int own = PyErr_Occurred() ? -1 : is_its_own(storage);
        done = own < 0 ? -1 : own && PySet_GET_SIZE(handed_out) == 0;
    }
    else {
        Py_INCREF(timeline);
        done = begin(ledger, timeline, begun, op, storage, tensor, key);
        Py_DECREF(timeline);
    }
    Py_DECREF(storage);
    return done;
}

int
write_begins(Ledger *ledger, Begun *begun, PyObject *op, PyObject *tensor, PyObject *key)
{
    memset(begun, 0, sizeof(*begun));
    if (WrittenClass == NULL) {
        return 0;
    }
    if (PyList_GET_SIZE(ledger->dead) && ledger_bury(ledger) < 0) {
        return -1;
    }
    ledger_lock(ledger);
    int done = on_roll(ledger->fresh) ? ledger_settle(ledger) : 0;
    if (done == 0) {
        done = find_and_begin(ledger, begun, op, tensor, key);
    }
    ledger_unlock(ledger);
    return done;
}

/* The Write has happened: credit the steps of the counters to it. */
static int
credit(Ledger *ledger, Timeline *timeline, Begun *begun)
{
    Written *written = begun->written;
    Py_ssize_t n = PyList_GET_SIZE(timeline->counters);
    for (int i = 0; i < begun->counters && i < n; i++) {
        Counter *counter = (Counter *)PyList_GET_ITEM(timeline->counters, i);
        long long now, before = begun->before[i];
        if (version_at(counter->carrier, &now) < 0) {
            return -1;
        }
        long long since = before > counter->seen ? before : counter->seen;
        if (now > since) {
            counter->credited += now - since;
            counter->seen = now;
        }
        if (now > before) {
            written->moved = 1;
        }
    }
    if (on_roll(timeline->fresh)) {
        PyObject *none = PyObject_CallMethodObjArgs((PyObject *)ledger, reorder, timeline, written, NULL);
        Py_XDECREF(none);
        if (none == NULL) {
            return -1;
        }
    }
    timeline->last = written->tick;
    if (PyList_Append(timeline->log, (PyObject *)written) < 0
        || (PyList_GET_SIZE(timeline->log) > MOST_WRITES
            && PyList_SetSlice(timeline->log, MOST_WRITES / 4, MOST_WRITES / 2, NULL) < 0))
    {
        return -1;
    }
    return living(timeline) ? 0 : close_timeline(ledger, timeline);
}

int
write_ended(Ledger *ledger, Begun *begun)
{
    if (begun->timeline == NULL) {
        return 0;
    }
    PyObject *kind, *error, *trace; /* of the write itself */
    PyErr_Fetch(&kind, &error, &trace);
    ledger_lock(ledger);
    int failed = (on_roll(ledger->fresh) && ledger_settle(ledger) < 0) || credit(ledger, begun->timeline, begun) < 0;
    ledger_unlock(ledger);
    Py_DECREF(begun->timeline);
    Py_DECREF(begun->written);
    if (kind != NULL) {
        PyErr_Restore(kind, error, trace);
    }
    return failed ? -1 : 0;
}

PyObject *
know_writes(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject **kept[] = {&WrittenClass, &RecordClass, &is_cpu, &detach, &getitem, &handed_out, &keep};
    return keep_all(args, kept, sizeof(kept) / sizeof(*kept));
}

int
writes_ready(void)
{
    Name names[] = {
        {&check_budget, "_check_budget"},
        {&reorder, "_reorder"}, {&data_word, "data"}, {&hides, "hides"},
    };
    if (INTERN(names) < 0) {
        return -1;
    }
    return 0;
}
