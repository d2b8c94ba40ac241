cimport cython
from gradmend.capture.ledger.entries cimport Save, Timeline, Write
from gradmend.capture.ledger.scopes cimport Scope
from gradmend.capture.memory.undo cimport Record

cdef class _Last:
    cdef object tallies, saved, wrote
    cdef list tally

cdef _Last _last

cpdef bint counted(tallies, Save save, Write write)
@cython.locals(record=Record, scope=Scope, timeline=Timeline, known=bint)
cpdef judge(ledger, Save save, packed=*)
@cython.locals(scope=Scope)
cdef _judged(ledger, Save save, packed, bint known)
