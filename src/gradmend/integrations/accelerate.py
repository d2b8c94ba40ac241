"""Accelerate, and loops of your own: forward, `accelerator.backward(loss)` and step inside one scope.

    from gradmend.integrations.accelerate import watching

    with watching(accelerator, html="report.html"):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                optimizer.step()

`with gradmend.watch():` does the same for one process; this one lets every process write a report of its own, and only
the main one print.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradmend.integrations.scopes import TrainingScope
from gradmend.model import Session


@contextmanager
def watching(accelerator: Any, **options: Any) -> Iterator[Session]:
    """Options: policy, paranoid, budget, report, html."""
    many = int(accelerator.num_processes) > 1
    for name in ("report", "html"):
        path = options.get(name)
        if path and many and f".rank{accelerator.process_index}." not in path:
            stem, dot, end = path.rpartition(".")
            options[name] = f"{stem or end}.rank{accelerator.process_index}{dot}{end if stem else ''}"
    scope = TrainingScope(**options)
    with scope as session:
        yield session
    told = scope.summary()
    if told and accelerator.is_main_process:
        print(told)
