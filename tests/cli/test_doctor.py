"""`gradmend doctor` and `gradmend --version`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from gradmend.capture.native import loading
from gradmend.cli import doctor
from gradmend.cli.main import main
from gradmend.compat import trust


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert torch.__version__ in said and "taps missing      none" in said
    assert said.count("\n  ok ") == len(trust.canaries().CANARIES)


def test_a_road_that_fails_is_told_with_its_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "tried", lambda: ({"ctx": "heal() gave [1.0]"}, True))
    assert main(["doctor"]) == 1
    assert "FAILS ctx" in (said := capsys.readouterr().out) and "heal() gave [1.0]" in said
    assert main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["roads"]["ctx"] == "heal() gave [1.0]" and found["roads"]["views"] is None


@pytest.mark.parametrize("pure", ["1", "0", ""])
def test_version_says_which_form(pure: str) -> None:
    code = "from gradmend.cli.main import main; main(['--version'])"
    environment = {**os.environ, "GRADMEND_PURE": pure}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if pure == "1":
        assert "(pure Python, as GRADMEND_PURE says)" in done.stdout
    elif os.environ.get("GRADMEND_PURE") == "1":  # this process can't tell what the other finds
        assert "(compiled)" in done.stdout or "(pure Python, slower" in done.stdout
    elif not loading.COMPILED:
        assert "(pure Python, slower" in done.stdout
    else:
        assert "(compiled)" in done.stdout


def test_examine_is_plain_data() -> None:
    json.dumps(doctor.examine())
