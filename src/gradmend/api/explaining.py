"""`gradmend.explain(exc)`: what an error, its printed text or a rule's code means."""

from __future__ import annotations

import re

from gradmend.errors import UsageError
from gradmend.model import Conflict


def explain(error: BaseException | str) -> str:
    """What an error of PyTorch's autograd means, and what to change. Takes the exception, its traceback's text,
    or the code of a rule, as in `explain("GM101")`.

    >>> import gradmend, torch
    >>> w = torch.ones(3, requires_grad=True)
    >>> try:
    ...     w += 1
    ... except RuntimeError as exc:
    ...     print(gradmend.explain(exc).splitlines()[0])
    error[GM121]: `w` is a leaf that requires grad, and this line writes to it in grad mode
    """
    if isinstance(error, str) and re.fullmatch(r"GM\d+", error.strip(), re.IGNORECASE):
        from gradmend import rules

        try:
            return rules.get(error.strip()).as_text()
        except KeyError as unknown:
            raise UsageError(str(unknown.args[0])) from None
    from gradmend.story.failures.explain import conflict_of

    conflict = conflict_of(error)
    if conflict is None:
        return "This is no error of autograd's that Gradmend knows."
    return words(conflict)


def words(conflict: Conflict, *, colour: bool = False, width: int = 100) -> str:
    from gradmend.report.terminal import render
    from gradmend.story.telling import tell

    return render(tell(conflict), colour=colour, width=width)
