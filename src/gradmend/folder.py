"""Where Gradmend's own files lie: lines of ours are none of the program's."""

import functools
import os

# Compiled modules know their files by names of this kind.
_BUILT = "src/gradmend/capture/"
OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
TAPS = os.path.join(OURS, "capture", "taps", "")

# The scripts that an installer makes for our commands: above every line of a program, and no line of it. And what
# stands between two lines, ours or the program's, and is neither.
_passed_over: set[str] = {functools.__file__}


def launched_by(file: str) -> None:
    if os.path.basename(file).startswith("gradmend"):
        _passed_over.add(file)


def is_ours(file: str) -> bool:
    return file.startswith((OURS, _BUILT)) or file in _passed_over


def absolute(file: str) -> str:
    """A working directory that is gone leaves a relative name as it is."""
    try:
        return os.path.abspath(file)
    except OSError:
        return file
