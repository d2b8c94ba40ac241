cimport cython
from gradmend.capture.graph.calls cimport BackwardCall
