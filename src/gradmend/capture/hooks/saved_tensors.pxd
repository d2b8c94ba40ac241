cimport cython
from gradmend.capture.graph.calls cimport visit
from gradmend.capture.ledger.entries cimport Save
from gradmend.capture.ledger.ledger cimport Ledger

cdef Ledger _ledger

cpdef _pack(t)
@cython.locals(save=Save)
cpdef _unpack(packed)
