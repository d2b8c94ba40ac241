cimport cython

cdef class Layout:
    cdef readonly long long lo, hi, offset
    cdef readonly bint dense, complex, repeats
    cdef readonly object shape, strides, dtype
    cdef Py_hash_t _hash
    cpdef bint _same(self, Layout other)
    cpdef Layout shifted(self, long long by)

cdef class LayoutIndex:
    cdef readonly long long lo, hi
    cdef dict _counts, _classes
    cdef list _unsorted
    cdef set _gone
    cpdef add(self, Layout layout)
    cpdef remove(self, Layout layout)
    cpdef rebuild(self)

@cython.locals(item="long long", lo="long long", reach="long long", distinct="long long", size="long long", stride="long long", at=Py_ssize_t, plain=bint, dense=bint)
cpdef Layout _made(long long offset, dtype, shape, strides)
cpdef Layout layout_of(object t)
cpdef Layout layout_at(object t, object key)
cpdef bint has_values(object t) except -1
cpdef bint overlap(Layout a, Layout b)
