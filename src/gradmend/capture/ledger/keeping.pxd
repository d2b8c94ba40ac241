cimport cython
from gradmend.capture.ledger.entries cimport Timeline, Write
from gradmend.capture.memory.layouts cimport Layout, LayoutIndex
from gradmend.capture.memory.undo cimport Record, UndoLog, take

@cython.locals(layout=Layout, undo=UndoLog, index=LayoutIndex, record=Record)
cpdef bint keep(Timeline timeline, t, Write write, elements, bint aliased, bint whole)
