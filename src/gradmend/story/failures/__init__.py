"""PyTorch's own errors of this family, told by the line that caused them.

diagnose(exc)                 the Conflict behind an exception, or None
remember(call, exc, roots)    the same while a failing backward's graph is still there, kept on the exception
explain(exc)                  the story in words, from an exception or its printed text   (explain.py)
postmortem(exc, roots, ring)  which recorded Write caused a version mismatch             (postmortem.py)
"""

from __future__ import annotations

from gradmend.story.failures.diagnosing import diagnose

__all__ = ["diagnose"]
