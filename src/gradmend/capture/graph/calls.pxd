cpdef current()
cpdef visit(number, raw)
