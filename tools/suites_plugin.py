"""A pytest plugin for suites.py: runs each test in one way, and notes how it ended, its gradients' bits and its CPU time."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Generator, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

import gradmend

WAY = os.environ["GRADMEND_SUITES_WAY"]
OUT = Path(os.environ["GRADMEND_SUITES_OUT"])
CONTEXTS: dict[str, Callable[[], Any]] = {"watch": gradmend.watch, "heal": gradmend.heal}
_found: dict[str, dict[str, Any]] = {}


class Bits:
    """The gradients that a test computes, in one digest."""

    def __init__(self) -> None:
        self.digest = sha256()

    def add(self, t: Any) -> None:
        if (
            isinstance(t, torch.Tensor)
            and t.layout is torch.strided
            and t.device.type == "cpu"
            and not t.is_nested
        ):
            with contextlib.suppress(RuntimeError):  # a wrapper of torch.func shows no bytes
                flat = t.detach().resolve_conj().resolve_neg().contiguous().view(-1)
                self.digest.update(
                    bytes(flat.view(torch.uint8).tolist())
                    if flat.numel() < 4096
                    else str(hash_of(flat)).encode()
                )

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        backward, grad = torch.autograd.backward, torch.autograd.grad

        def noted_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            leaves = list(_leaves(tensors))
            out = backward(tensors, *args, **kwargs)
            for leaf in leaves:
                self.add(leaf.grad)
            return out

        def noted_grad(*args: Any, **kwargs: Any) -> Any:
            out = grad(*args, **kwargs)
            for one in out:
                self.add(one)
            return out

        torch.autograd.backward, torch.autograd.grad = noted_backward, noted_grad
        try:
            yield
        finally:
            torch.autograd.backward, torch.autograd.grad = backward, grad


def hash_of(flat: torch.Tensor) -> int:
    return int(torch.hash_tensor(flat).item())


def _leaves(tensors: Any) -> Iterator[torch.Tensor]:
    roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    todo, seen = [getattr(t, "grad_fn", None) for t in roots], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        todo += [below for below, _ in node.next_functions]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    torch.manual_seed(0)
    random.seed(0)
    with contextlib.suppress(ImportError):
        import numpy as np

        np.random.seed(0)
    bits, start = Bits(), time.process_time()
    try:
        with bits.taken(), CONTEXTS.get(WAY, contextlib.nullcontext)():
            return (yield)
    finally:
        _found[item.nodeid] = {"bits": bits.digest.hexdigest(), "seconds": time.process_time() - start}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        one = _found.setdefault(report.nodeid, {"bits": "", "seconds": 0.0})
        one["outcome"] = report.outcome
        one["error"] = str(report.longrepr)[-1500:] if report.outcome == "failed" else ""


def pytest_configure() -> None:
    if WAY == "install":
        gradmend.install()


def pytest_sessionfinish() -> None:
    OUT.write_text(json.dumps(_found))
