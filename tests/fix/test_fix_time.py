"""A trial that was cut off is told as that, with the option that gives it more time; never as a program without a cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradmend.fix.session import fix


def test_a_program_that_takes_longer_than_its_limit(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "slow.py"
    script.write_text(
        "import time, torch\nx = torch.ones(3, requires_grad=True)\ntime.sleep(20)\ny = x.exp()\ny += 1\ny.sum().backward()\n"
    )
    outcome = fix(script, [], steps=5, seconds=1, write=False, unsafe=False, colour=False)
    told = capfd.readouterr()
    assert outcome.code == 1
    assert "--time-limit" in told.out + told.err and "no write was seen" not in told.out
