"""How the holders of a lone gradient are counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gradmend
from gradmend.capture.hooks import gradients


@pytest.mark.parametrize("kind", list(gradients._REGISTERING))
def test_registering_that_the_program_has_wrapped_sees_nothing_of_ours(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name = gradients._REGISTERING[kind]
    plain, seen = owner.__dict__[name], []

    def wrapped(self: Any, hook: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(hook)
        return plain(self, hook, *args, **kwargs)

    with gradmend.watch():
        measured = dict(gradients._alone)
    monkeypatch.setattr(owner, name, wrapped)
    monkeypatch.setattr(gradients, "_alone", {})
    with gradmend.watch():
        assert gradients._alone == measured
        assert not seen
        torch.ones(2, requires_grad=True).register_hook(lambda grad: None)
    assert len(seen) == (kind == "tensor")
