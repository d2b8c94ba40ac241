"""One watch() or heal() over a whole training run, opened and closed by somebody else's loop; leaves reports behind."""

from __future__ import annotations

from types import TracebackType
from typing import Literal

from gradmend.api.installing import explain_forward
from gradmend.api.watching import Watching
from gradmend.capture.memory.budget import parse
from gradmend.errors import attached
from gradmend.integrations import torchrun
from gradmend.model import Session
from gradmend.running import output
from gradmend.running.about import about

Policy = Literal["watch", "heal"]


class TrainingScope:
    """`with TrainingScope("watch", html="report.html"):`, or open() and close(error) where a loop has only events.

    Under torchrun each rank writes its own report: report.rank0.html.
    """

    def __init__(
        self,
        policy: Policy = "watch",
        *,
        paranoid: bool = False,
        budget: int | str | None = None,
        report: str | None = None,
        html: str | None = None,
    ) -> None:
        if policy not in ("watch", "heal"):
            raise ValueError(f"policy is 'watch' or 'heal', not {policy!r}")
        self._watching = Watching(policy, parse(budget), paranoid)
        self._report, self._html = report, html
        self._is_open = False
        self.session = Session()

    def open(self) -> Session:
        if not self._is_open:
            self.session = self._watching.__enter__()
            self._is_open = True
        return self.session

    def close(self, error: BaseException | None = None) -> None:
        """Once; what comes later changes nothing. An error of PyTorch's own gets its story."""
        if not self._is_open:
            return
        self._is_open = False
        if error is not None:
            explain_forward(error)
            told = attached(error)
            if told is not None and all(told is not c for c in self.session.conflicts):
                self.session.conflicts.append(told)
                self.session.outcome = "conflict"
            self.session.error = {
                "type": type(error).__name__,
                "message": str(error),
                "file": None,
                "line": None,
            }
        self._watching.__exit__(None, None, None)
        if self._report or self._html:
            import sys

            self.session.run = about(sys.argv[0] if sys.argv else "", sys.argv[1:])
            output.write(self.session, torchrun.own_path(self._report), torchrun.own_path(self._html))

    def __enter__(self) -> Session:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    def summary(self) -> str | None:
        """One line for a log; None where there is nothing to say."""
        said = output.healed_words(self.session.conflicts) if self.session.outcome == "healed" else ""
        return f"gradmend: {said}" if said else None
