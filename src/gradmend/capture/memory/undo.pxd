from gradmend.capture.memory.layouts cimport Layout, LayoutIndex, overlap
cimport cython

cdef class Ticked:
    cdef public long long tick

cdef class Record(Ticked):
    cdef readonly long long nbytes
    cdef readonly Layout layout
    cdef readonly object write, elements
    cdef public object old
    @cython.locals(layout=Layout)
    cpdef whole(self, like=*)
    cpdef held(self)

cdef class UndoLog:
    cdef readonly list records
    cdef readonly long long nbytes
    cdef dict _series
    cdef Py_ssize_t _filed, _indexed
    cdef LayoutIndex _index
    cdef object _shadow
    cpdef add(self, Record record)
    cpdef _empty(self)
    cpdef dict _by_region(self)
    cpdef Py_ssize_t _after(self, long long tick)
    @cython.locals(record=Record)
    cpdef Record exact(self, Layout layout, long long tick)
    @cython.locals(record=Record)
    cpdef bint hides(self, Layout layout, long long newest)
    @cython.locals(record=Record, kept=list, hidden=dict, at=Py_ssize_t, newest="long long")
    cpdef prune(self, list ticks)

@cython.locals(lo=Py_ssize_t, hi=Py_ssize_t, middle=Py_ssize_t, one=Ticked)
cpdef Py_ssize_t first_after(list entered, long long tick)
@cython.locals(record=Record)
cdef Record _made(Ticked write, Layout layout, old, elements=*)
cpdef Record take(object t, object storage, object write, Layout layout, object elements=*, object view=*)
