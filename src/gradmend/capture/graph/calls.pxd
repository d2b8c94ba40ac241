cimport cython

cdef class BackwardCall:
    cdef public object tick, raw, roots, thread, outcome, seeds
    cdef public bint retain
    cdef public dict visited

cpdef BackwardCall current()
@cython.locals(call=BackwardCall)
cpdef visit(number, raw)
