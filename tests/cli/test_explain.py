from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

import pytest

import gradmend
import warm
from gradmend.cli import explain
from gradmend.errors import UsageError

ERROR = (
    "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: "
    "[torch.cuda.FloatTensor [64, 32]], which is output 0 of ReluBackward0, is at version 2; expected version 1 instead."
)


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    explain.add_parser(parser.add_subparsers(dest="command"))
    return explain.run(parser.parse_args(["explain", *argv]))


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_a_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("gm121") == 0
    out = capsys.readouterr().out
    assert out.startswith("GM121 leaf-written-in-grad-mode") and "Use instead" in out


def test_an_unknown_rule_is_one_clear_line() -> None:
    with pytest.raises(UsageError, match=r"explain: there is no rule GM999; the rules are GM101, "):
        run("GM999")


def test_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "error.txt"
    file.write_text(ERROR)
    assert run(str(file)) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("error[GM101]: the result of relu, float32[64, 32], was overwritten")
    assert "its version went from 1 to 2" in out
    assert "\x1b" not in out


def test_stdin_also_as_a_dash_and_with_bad_bytes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv in ((), ("-",)):
        stdin(monkeypatch, b"\xff\xfe log noise\n" + ERROR.encode())
        assert run(*argv) == 0
        assert "relu" in capsys.readouterr().out


def test_the_end_of_a_long_log_is_what_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1 loss 0.5\n" * 400_000 + ERROR)
    assert run(str(log)) == 0
    assert "GM101" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "there is no text"),
        (b" \n", "there is no text"),
        (b"ValueError: no", "holds no error of autograd's"),
    ],
)
def test_what_it_can_not_explain(monkeypatch: pytest.MonkeyPatch, text: bytes, why: str) -> None:
    stdin(monkeypatch, text)
    with pytest.raises(UsageError, match=why):
        run()


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"can't read .*nowhere.txt: No such file"):
        run(str(tmp_path / "nowhere.txt"))
    with pytest.raises(UsageError, match=r"can't read .*: Is a directory"):
        run(str(tmp_path))


def test_from_the_command_line(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("import torch\nw = torch.ones(3, requires_grad=True)\nw[0] = 1\n")
    failed = warm.run([sys.executable, str(program)], cold=True)
    command = [sys.executable, "-m", "gradmend", "explain"]
    told = warm.run(command, input=failed.stderr)
    assert told.returncode == 0, told.stderr
    assert "error[GM121]: `w[0]` is a view of a leaf" in told.stdout
    assert "3 | w[0] = 1" in told.stdout
    bad = warm.run(command, input="hello")
    assert bad.returncode == 2
    assert len(bad.stderr.strip().splitlines()) == 1 and "Traceback" not in bad.stderr


def test_the_function_takes_an_exception_and_what_it_was_raised_from() -> None:
    import torch

    def step() -> None:
        w = torch.ones(3, requires_grad=True)
        try:
            w.mul_(2)
        except RuntimeError as exc:
            raise ValueError("training failed") from exc

    with pytest.raises(ValueError) as caught:
        step()
    text = gradmend.explain(caught.value)
    assert "error[GM121]: `w` is a leaf" in text and "w.mul_(2)" in text
    assert "no error of autograd's" in gradmend.explain(KeyError("x"))
