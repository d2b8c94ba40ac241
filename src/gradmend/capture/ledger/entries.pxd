cimport cython
from gradmend.capture.ledger.lock cimport Lock
from gradmend.capture.ledger.scopes cimport Scope
from gradmend.capture.memory.layouts cimport Layout, LayoutIndex, layout_of
from gradmend.capture.memory.undo cimport Record, Ticked, UndoLog

cdef class Save:
    cdef object __weakref__
    cdef public object handle, raw, original, ref, print, escape
    cdef public Scope scope
    cdef public long long version, tick, number, standing
    cdef public Timeline timeline
    cdef public Layout layout
    cdef public tuple swaps
    cdef public Counter counter
    cdef public Roll roll
    cdef public bint unchecked, detached
    @cython.locals(timeline=Timeline)
    cpdef bint untouched(self)
    cpdef bint moved(self)
    cpdef bint uncredited(self)
    cpdef settle(self, Counter counter)

cdef class Write(Ticked):
    cdef public long long kept
    cdef public object op, raw, how
    cdef public Layout layout
    cdef public bint moved, counted

@cython.locals(save=Save)
cpdef Save made_save(handle, long long version, long long tick, raw, Scope scope, kind=*)
@cython.locals(write=Write)
cpdef Write made_write(long long tick, op, raw, Layout layout, how=*)

cdef class Counter:
    cdef public object carrier, base
    cdef public long long credited, seen
    cpdef bint carried_by(self, t)
    @cython.locals(now="long long", step="long long")
    cpdef bint credit(self, long long before)

cdef class Roll:
    cdef list _refs
    cdef readonly Py_ssize_t _living
    @cython.locals(save=Save)
    cpdef list living(self)
    @cython.locals(refs=list, one=Save)
    cpdef add(self, Save save)
    cpdef drop(self, Save save)

cdef class Timeline:
    cdef readonly object ledger, key
    cdef readonly Lock lock
    cdef readonly Roll live
    cdef readonly list entered, dead
    cdef readonly LayoutIndex index
    cdef readonly UndoLog undo
    cdef public list counters, log, gone
    cdef public long long last, newest, deaths
    cpdef enter(self, Save save)
    cpdef open(self)
    @cython.locals(save=Save)
    cpdef settle(self)
    cpdef Py_ssize_t lives(self)
    @cython.locals(counter=Counter)
    cpdef Counter _counter_of(self, Save save)
    cpdef Record exact(self, Save save)
    cpdef wrote(self, Write write)
    @cython.locals(waiting=Py_ssize_t)
    cpdef died(self, Layout layout)
    cpdef forget(self, Layout layout)
    cpdef tidy(self)
    cpdef list saves(self)
