from libc.stdint cimport uint64_t

cdef extern from *:
    """
    /* Of a thread of Python's, for as long as the process lives; 0 is none. */
    #define thread_number() PyThreadState_GetID(PyThreadState_Get())
    """
    uint64_t thread_number()

cdef class Scope:
    cdef public object policy, tell, budget, healed, spared, again, refused, left, among
    cdef public bint paranoid, plain

cdef class _Last:
    cdef list scopes
    cdef uint64_t thread

cdef _Last _last

cpdef list own()
cpdef list opened()
