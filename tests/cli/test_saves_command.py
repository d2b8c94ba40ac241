"""`gradmend saves`: the words, the data, and bad input."""

from __future__ import annotations

import argparse
import json

import pytest

from gradmend.cli import saves
from gradmend.story import knowledge


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    saves.add_parser(parser.add_subparsers())
    args = parser.parse_args(["saves", *argv])
    code: int = args.run(args)
    return code


def test_exp(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("exp") == 0
    assert capsys.readouterr().out == (
        "exp keeps its result for backward.\n"
        "\n"
        "  exp(Tensor self) -> Tensor\n"
        "    gradient of self: grad * result\n"
        "    keeps result\n"
        "\n"
        "Writing to its input afterwards is safe: backward does not need it.\n"
        "Writing to its result between forward and backward is not safe.\n"
    )


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("mul", "keeps self, if other needs a gradient"),
        ("mul_", "mul_ keeps a copy of what its input was and its input `other` for backward."),
        ("add", "add keeps none of its tensors for backward."),
        ("F.cross_entropy", "cross_entropy keeps `target` and values in between for backward."),
        ("softmax", "it runs as _softmax."),
        ("argmax", "no entry in derivatives.yaml"),
        ("nll_loss_forward", "keeps self, though backward never looks at its values"),
    ],
)
def test_words(op: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(op) == 0
    assert words in capsys.readouterr().out


def test_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("exp", "linear", "--json") == 0
    exp, linear = json.loads(capsys.readouterr().out)
    assert exp["keeps"] == ["result"] and exp["formulas"] == {"self": "grad * result.conj()"}
    assert linear["made_of"] == ["TBackward0", "AddmmBackward0"] and linear["writing_input_is_safe"] is False


def test_a_bad_op_gets_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sofmax") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gradmend saves: there is no op called 'sofmax' in torch; did you mean softmax")
    assert err.count("\n") == 1


def test_what_is_known_is_told_beside_a_bad_op(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("exp", "nosuch", "mul") == 2
    out, err = capsys.readouterr()
    assert "exp keeps its result for backward." in out and "mul keeps" in out
    assert "'nosuch'" in err and err.count("\n") == 1


@pytest.mark.parametrize("name", ["nn.LSTM", "torch.nn.GRU", "nn.RNN", "LSTM"])
def test_recurrent_modules_are_measured(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name) == 0
    out = capsys.readouterr().out
    assert "keeps `input`, `weight_ih_l0`" in out.splitlines()[0] and "Writing to its result" in out


def test_the_verdict_on_an_lstm_is_that_of_the_installed_torch() -> None:
    import torch

    x, module = torch.ones(2, 1, 3, requires_grad=True), torch.nn.LSTM(3, 2)
    out, _ = module(x)
    refused = False
    try:
        out.add_(1)
        out.sum().backward()
    except RuntimeError:
        refused = True
    assert refused is not knowledge.saves("nn.LSTM").writing_output_is_safe


@pytest.mark.parametrize("name", ["nn.TransformerEncoderLayer", "nn.Sequential", "torch.optim.SGD"])
def test_what_is_no_op_says_what_to_ask(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and ("ask for those that it calls" in err or "there is no op" in err)
