cimport cython
from gradmend.capture.edits.live_edits cimport _State, unconcerned
from gradmend.capture.ledger.ledger cimport Ledger
from gradmend.capture.memory.layouts cimport Layout, layout_at

cdef Ledger _ledger
cdef _State _edits
cdef set _awake

cdef class Pending:
    cdef object op, targets, how
    cdef list token, edits
    cdef bint overlooked

@cython.locals(made=Pending)
cdef Pending _pending(op, targets, token, how, edits=*)

@cython.locals(pending=Pending)
cdef _overlooked(work, tuple args)
cpdef bint only_recorded(t) except -1
cpdef Pending before(op, targets, args=*, kwargs=*, how=*)
cpdef Pending _before(op, targets, args, kwargs, how)
@cython.locals(given=list, written=list)
cpdef bint _aliased(targets, args, kwargs) except *
cpdef after(Pending pending)
cpdef _after(Pending pending)
cpdef told(op, targets, how)
cpdef carry(Pending pending, original, tuple args, kwargs=*)
cpdef heard(call, op, how, tuple args, kwargs=*)
cpdef heard_item(call, op, how, tuple args, kwargs=*)
@cython.locals(region=Layout)
cpdef Pending _before_item(t, key)
