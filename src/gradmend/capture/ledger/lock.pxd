cimport cython

cdef extern from "pythread.h":
    unsigned long get_ident "PyThread_get_thread_ident" ()

cdef class Lock:
    cdef object _plain
    cdef unsigned long _owner
    cdef Py_ssize_t _depth
    @cython.locals(me="unsigned long")
    cpdef bint take(self, bint wait=*) except -1
    cpdef give(self)
