cimport cython
from gradmend.capture.memory.layouts cimport Layout, layout_of

@cython.locals(layout=Layout)
cpdef tuple _place(t)
cpdef _places(tensors)
