cimport cython
from gradmend.capture.graph.calls cimport visit
from gradmend.capture.ledger.entries cimport Save
from gradmend.capture.ledger.ledger cimport Ledger
from gradmend.capture.ledger.scopes cimport own

cdef Ledger _ledger

@cython.locals(mine=list, opened=list)
cpdef _pack(t)
@cython.locals(save=Save)
cpdef _unpack(packed)
