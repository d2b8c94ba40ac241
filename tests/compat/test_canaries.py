"""A torch that nobody has tried: the canaries find each road that does not hold, and silence is never the answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gradmend
from gradmend.capture.taps import homes, special
from gradmend.capture.taps.missing import missing
from gradmend.compat import trust
from gradmend.compat.releases import TESTED, is_tested, release

HERE = Path(__file__).parent


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """The installed torch counts as one that nobody has tried, and nothing is remembered."""
    monkeypatch.setattr(trust, "is_tested", lambda version: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    trust._failures.cache_clear()
    trust._say_once.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    trust._failures.cache_clear()
    trust._say_once.cache_clear()


def test_every_road_that_is_ruined_is_found() -> None:
    environment = {**os.environ, "GRADMEND_PURE": "1"}
    done = subprocess.run(
        [sys.executable, HERE / "ruined_roads.py"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout)
    assert set(said) == set(trust.canaries().CANARIES)
    for road, (before, during, after) in said.items():
        assert before is None, (road, before)
        assert during is not None, f"{road} was ruined, and its canary sang"
        assert after is None, (road, after)


def test_all_roads_hold_here_and_that_is_remembered(unseen: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert trust.failures() == {}
    (place,) = tmp_path.rglob("canaries-*.json")
    place.write_text(json.dumps({"ctx": "was remembered"}))
    trust._failures.cache_clear()
    assert trust.failures() == {"ctx": "was remembered"}
    for spoilt in ("", "[1]", '{"ctx": 1}', '{"nope": "x"}', "[" * 100_000):
        place.write_text(spoilt)
        unseen.setattr(trust, "tried", lambda: ({"views": "tried again"}, False))
        trust._failures.cache_clear()
        assert trust.failures() == {"views": "tried again"}


def test_heal_stops_where_a_road_does_not_hold(unseen: pytest.MonkeyPatch) -> None:
    unseen.setattr(trust, "failures", lambda: {"ctx": "watch() said nothing"})
    with pytest.raises(gradmend.GradmendError) as told, gradmend.heal():
        pass
    words = str(told.value)
    assert torch.__version__ in words and "tensors that a custom Function keeps on ctx" in words
    assert "GRADMEND_TRUST=ctx" in words and "\n" not in words
    unseen.setenv("GRADMEND_TRUST", "views, ctx")
    with gradmend.heal():
        pass


def test_watch_says_once_what_it_cannot_see(unseen: pytest.MonkeyPatch) -> None:
    unseen.setattr(trust, "failures", lambda: {"fused": "watch() said nothing"})
    with pytest.warns(gradmend.GradmendWarning, match="fused steps of optimizers"), gradmend.watch():
        pass
    with pytest.MonkeyPatch.context() as again:
        again.setattr(trust.warnings, "warn", lambda *a, **k: pytest.fail("said twice"))
        with gradmend.watch():
            pass


def test_a_child_that_dies_or_hangs_is_a_road_that_does_not_hold(unseen: pytest.MonkeyPatch) -> None:
    def dies(roads: list[str]) -> tuple[list[tuple[str, str | None]], str]:
        said = [(road, None) for road in roads if road < "e"]
        return said[:3], "ended its process (-11)"

    unseen.setattr(trust, "_child", dies)
    found, complete = trust.tried()
    assert complete and found and set(found.values()) == {"ended its process (-11)"}
    unseen.setattr(trust, "_child", lambda roads: ([], "not run: no such file"))
    found, complete = trust.tried()
    assert not complete and set(found) == set(trust.canaries().CANARIES)


def test_a_child_with_another_torch_tells_nothing(unseen: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "python"
    for says in (
        "true",
        "echo 5",
        """echo '["torch", "9.9 x"]'; echo '["ctx", null]'""",
        r"printf '\377' >&2",
    ):
        other.write_text(f"#!/bin/sh\n{says}\n")
        other.chmod(0o755)
        unseen.setattr(trust.sys, "executable", str(other))
        found, complete = trust.tried()
        assert not complete and set(found) == set(trust.canaries().CANARIES)
        assert all(why.startswith("not run: a child of") for why in found.values())


def test_without_a_home_they_run_and_nothing_is_remembered(
    unseen: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    unseen.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    unseen.setattr(trust, "tried", lambda: ({}, True))
    trust._failures.cache_clear()
    assert trust.failures() == {}


def test_what_counts_as_tested() -> None:
    assert release("2.13.0+cpu") == "2.13"
    assert is_tested(f"{TESTED[-1]}.0+cu130") and is_tested("2.13.1")
    assert (
        not is_tested("2.99.0")
        and not is_tested(f"{TESTED[-1]}.0.dev20260101+cpu")
        and not is_tested("2.13.0a0+git1")
    )
    assert is_tested(torch.__version__), "run `make test-matrix` and enter this release in compat/releases.py"


def test_no_name_is_missing_and_one_that_is_would_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing() == []
    storage = (torch.UntypedStorage, "copy_ vanished_", special._storage_write)
    monkeypatch.setattr(special, "_taps", lambda: (storage,))
    monkeypatch.setattr(homes, "UNSCHEMED_METHODS", ("apply_", "gone_"))
    assert missing() == ["Tensor.gone_", "UntypedStorage.vanished_"]
