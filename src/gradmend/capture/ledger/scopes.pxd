cdef class Scope:
    cdef public object policy, tell, budget, healed, spared, again, refused, left, among
    cdef public bint paranoid, plain
