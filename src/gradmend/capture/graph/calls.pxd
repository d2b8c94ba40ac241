cpdef visit(number, raw)
