cimport cython

cpdef current()
@cython.locals(visited=dict)
cpdef visit(number, raw)
