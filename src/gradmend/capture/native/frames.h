/* A frame of the running program, from the innermost outwards: which code, and how far it has come.

   Python 3.11's public functions make an object for each frame they are asked about, which then lives until the frame
   returns. Its headers tell where the interpreter keeps the same facts, and there they are only read. On other versions,
   where that differs, it is the public functions. */

#ifndef GRADMEND_FRAMES_H
#define GRADMEND_FRAMES_H

#include <Python.h>
#include <frameobject.h>

#if PY_VERSION_HEX < 0x030C0000 && !defined(PYPY_VERSION)

#define Py_BUILD_CORE 1
#include <internal/pycore_code.h>
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE

typedef _PyInterpreterFrame *Frame; /* borrowed: it runs below us */

static inline Frame
whole(Frame frame) /* this one, or the first above that has begun to run */
{
    while (frame != NULL && _PyFrame_IsIncomplete(frame)) {
        frame = frame->previous;
    }
    return frame;
}

static inline Frame
innermost(void)
{
    return whole(PyThreadState_Get()->cframe->current_frame);
}

static inline Frame
above(Frame frame)
{
    return whole(frame->previous);
}

static inline PyObject *
code_of(Frame frame) /* borrowed */
{
    return (PyObject *)frame->f_code;
}

static inline long
lasti_of(Frame frame)
{
    return (long)_PyInterpreterFrame_LASTI(frame) * (long)sizeof(_Py_CODEUNIT);
}

static inline void
leave(Frame Py_UNUSED(frame))
{
}

#else

typedef PyFrameObject *Frame;

static inline Frame
innermost(void)
{
    return (Frame)Py_XNewRef((PyObject *)PyEval_GetFrame());
}

static inline Frame
above(Frame frame) /* in place of this one */
{
    Frame caller = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    return caller;
}

static inline PyObject *
code_of(Frame frame) /* borrowed: the frame has it still */
{
    PyObject *code = (PyObject *)PyFrame_GetCode(frame);
    Py_DECREF(code);
    return code;
}

static inline long
lasti_of(Frame frame)
{
    return PyFrame_GetLasti(frame);
}

static inline void
leave(Frame frame)
{
    Py_XDECREF(frame);
}

#endif

#endif
