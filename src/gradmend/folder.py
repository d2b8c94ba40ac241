"""Where Gradmend's own files lie: lines of ours are none of the program's."""

import os

# Compiled modules know their files by names of this kind.
_BUILT = "src/gradmend/capture/"
OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
TAPS = os.path.join(OURS, "capture", "taps", "")


def is_ours(file: str) -> bool:
    return file.startswith((OURS, _BUILT))
