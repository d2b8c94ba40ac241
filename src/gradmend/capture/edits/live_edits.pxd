cdef class _State:
    cdef public bint on
    cdef public dict aliases
    cdef public long long sweep_at
    cdef public list pending, handed, inputs, leaf_writes, views

cdef _State _state

cpdef bint unconcerned(t) except *
cpdef bint _lone_leaf(t) except *
cpdef bint apart(parameters) except *
