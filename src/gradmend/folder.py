"""Where Gradmend's own files lie: lines of ours are none of the program's."""

import os

OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
TAPS = os.path.join(OURS, "capture", "taps", "")
