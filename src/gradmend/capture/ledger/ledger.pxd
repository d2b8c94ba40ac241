cimport cython
from gradmend.capture.ledger.entries cimport Counter, Roll, Save, Timeline, Write, made_save, made_write
from gradmend.capture.ledger.judging cimport judge
from gradmend.capture.ledger.keeping cimport keep
from gradmend.capture.ledger.lock cimport Lock
from gradmend.capture.ledger.scopes cimport Scope
from gradmend.capture.memory.layouts cimport Layout, layout_of

cdef class Ledger:
    cdef readonly dict timelines
    cdef readonly Roll fresh
    cdef readonly set awake
    cdef readonly list dead
    cdef readonly Lock lock
    cdef object _clock
    cdef public bint budgets
    cdef readonly list about_to
    cdef long long _busy
    @cython.locals(save=Save, timeline=Timeline)
    cpdef settle(self)
    @cython.locals(timeline=Timeline)
    cpdef bury(self)
    @cython.locals(save=Save)
    cpdef Save save(self, t, Scope scope, raw, kind=*)
    @cython.locals(timeline=Timeline)
    cpdef list before(self, op, targets, elements=*, how=*, bint aliased=*, Layout region=*)
    cpdef Timeline _timeline(self, key)
    cpdef tuple _timeline_of(self, t, bint create=*)
    @cython.locals(write=Write, layout=Layout, counter=Counter)
    cpdef tuple _enter(self, Timeline timeline, long long shift, t, op, raw, elements, how, bint aliased, Layout region)
    @cython.locals(timeline=Timeline, write=Write, counter=Counter, before=list, at=Py_ssize_t)
    cpdef after(self, list token)
    cpdef ask(self, Save save, packed=*)
