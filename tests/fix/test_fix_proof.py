"""The oracles against each other and against the truth, and the candidates that must not pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fix_trials import Make

from gradmend.fix.judging.compare import Verdict, compare, same_words
from gradmend.fix.judging.judge import Judge, measure
from gradmend.fix.search.outcome import Plan
from gradmend.fix.source.facts import from_json

HEAD = """
import torch
torch.manual_seed(0)
w = torch.randn(3, 3, requires_grad=True)
x = torch.randn(4, 3)
"""
OVERWRITTEN = HEAD + "h = torch.tanh(x @ w)\nh += x\n(h * h).sum().backward()\n"
MEANT = HEAD + "h = torch.tanh(x @ w)\nh = h + x\n(h * h).sum().backward()\n"


def test_copies_and_healing_agree_with_the_out_of_place_program(runner: Make) -> None:
    meant = runner(MEANT).run({}, "plain")
    broken = runner(OVERWRITTEN)
    assert not broken.run({}, "plain").ran
    for mode in ("heal", "copies"):
        assert compare(meant, broken.run({}, mode)).same


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ("h = h.detach() + x", "does not require grad"),
        ("h = torch.tanh(x @ w.detach()) + x + 0 * w.sum()", "gradient of w"),
        ("h = h + 2 * x", "loss"),
        ("h.data += x", "gradient of w"),
        ("h = h + x; (0 * h).sum().backward(retain_graph=True)", "backward calls"),
    ],
)
def test_edits_that_cut_or_change_the_gradient_are_rejected(runner: Make, edit: str, told: str) -> None:
    oracle = runner(OVERWRITTEN).run({}, "heal")
    verdict = compare(oracle, runner(OVERWRITTEN.replace("h += x", edit)).run({}, "plain"))
    assert not verdict.same and told in verdict.why


def test_an_edit_that_drops_an_update_is_not_exact(runner: Make) -> None:
    source = (
        "import torch\nnet = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1))\n"
        "loss = net(torch.ones(1, 2)).sum()\n"
        "with torch.no_grad():\n    for p in net.parameters():\n        p.mul_(0.5)\nloss.backward()\n"
    )
    oracle = runner(source).run({}, "heal")
    dropped = compare(oracle, runner(source.replace("p.mul_(0.5)", "p = p * 0.5")).run({}, "plain"))
    assert dropped.same and not dropped.exact
    assert any("Linear" in c for c in dropped.changed)


def test_differences_equal_the_gradient_and_catch_a_wrong_one(runner: Make) -> None:
    source = HEAD + "h = torch.sin(x @ w)\n{}\nloss = (h + h.detach() ** 2).sum()\nloss.backward()\n"
    good = runner(source.format("h = h.masked_fill(h < 0, 0.0)"))
    slopes = measure(runner(source.format("h.data.masked_fill_(h < 0, 0.0)")), {})
    assert not isinstance(slopes, str)
    plain = good.run({}, "plain")
    assert Judge(good, "differences", None, plain, slopes).final(plain, {}).same
    bad = runner(source.format("h.data.masked_fill_(h < 0, 0.0)"))
    wrong = Judge(bad, "differences", None, plain, slopes).final(bad.run({}, "plain"), {})
    assert not wrong.same and "off the differences" in wrong.why


STEPS = HEAD + (
    "w = torch.nn.Parameter(torch.randn(3, 3))\nopt = torch.optim.Adam([w], lr=0.1)\n"
    "for step in range(3):\n    h = torch.sin(x @ w)\n    {}\n    loss = (h * h.detach() + h).sum()\n"
    "    opt.zero_grad()\n    loss.backward()\n    opt.step()\n"
)


@pytest.mark.slow
def test_differences_judge_later_calls_from_equal_parameters(runner: Make) -> None:
    hidden = "h.data.masked_fill_(h < 0, 0.0)"
    original = runner(STEPS.format(hidden))
    slopes = measure(original, {})
    assert not isinstance(slopes, str)
    name = str(original.scratch.script)

    def verdict(line: str) -> Verdict:
        edited = {name: STEPS.format(line).encode()}
        trial = original.run(edited, "plain")
        return Judge(original, "differences", None, original.run({}, "plain"), slopes).final(trial, edited)

    good = verdict("h = h.masked_fill(h < 0, 0.0)")
    assert good.same and (good.calls, good.of) == (3, 3)
    late = verdict(
        "h = h.masked_fill(h < 0, 0.0) if step < 1 else h.masked_fill(h < 0, 0.0) * 1 + 0 * h.exp()"
    )
    assert late.same
    cut = verdict("h = h.masked_fill(h < 0, 0.0) if step < 1 else (h - h.detach() * (h < 0))")
    assert not cut.same and "in backward call 2" in cut.why
    other = verdict("h = h.masked_fill(h < 0, 0.0 if step < 1 else 0.5)")
    assert not other.same and "in backward call 2: it changes the loss" in other.why


def test_an_array_that_edits_the_graph_is_no_stop(runner: Make) -> None:
    source = HEAD + "h = torch.tanh(x @ w)\n{}\nloss = (h * h.detach()).sum()\nloss.backward()\n"
    slopes = measure(runner(source.format("a = h.detach().numpy()\na *= 2")), {})
    assert not isinstance(slopes, str)
    good = runner(source.format("h = h * 2"))
    plain = good.run({}, "plain")
    assert Judge(good, "differences", None, plain, slopes).final(plain, {}).same


def test_differences_of_a_refused_forward(runner: Make) -> None:
    body = "a, b = (x @ w).chunk(2)\n{}\nloss = (a * b).sum()\nloss.backward()\n"
    slopes = measure(runner(HEAD + body.format("a *= 3")), {})
    assert not isinstance(slopes, str)
    good = runner(HEAD + body.format("a = a * 3"))
    plain = good.run({}, "plain")
    assert Judge(good, "differences", None, plain, slopes).final(plain, {}).same


def test_steps_bound_the_run(runner: Make) -> None:
    endless = HEAD + "while True:\n    (x @ w).pow(2).sum().backward()\n"
    run = runner(endless, steps=3).run({}, "plain")
    assert run.outcome == "stopped" and len(run.calls) == 3
    first, second = run.calls[0]["grads"], run.calls[1]["grads"]
    assert np.array_equal(
        first["leaf [3, 3] 0"], second["leaf [3, 3] 0"]
    )  # the gradient, not its running sum


def test_a_run_that_hangs_is_ended(runner: Make) -> None:
    assert runner("import time\ntime.sleep(60)\n", seconds=1).run({}, "plain").outcome == "late"


def test_nondeterminism_is_told(plan: Callable[[str], Plan]) -> None:
    source = OVERWRITTEN.replace(
        "torch.manual_seed(0)", "import time; torch.manual_seed(time.time_ns() % 2**31)"
    )
    found = plan(source)
    assert found.status == "unproven" and "not deterministic" in found.message
    assert "loss of backward call 1" in found.message and not found.sources


def test_a_program_that_asks_for_input(plan: Callable[[str], Plan]) -> None:
    found = plan("n = int(input('size? '))\n")
    assert found.status == "stuck" and "asks for input" in found.message


def test_a_sparse_error_is_told_in_one_line(plan: Callable[[str], Plan]) -> None:
    found = plan(
        "import torch\nA = torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (2, 2))\nA.values().sum()\n"
    )
    assert found.status == "stuck" and found.message.startswith("GM301") and "main.py:3" in found.message
    assert "coalesce()" in found.message and "\n" not in found.message


def test_only_the_second_backward_rule_is_a_second_backward() -> None:
    assert from_json({"rule": "GM131", "message": "twice"}).second
    assert not from_json({"rule": "GM301", "message": "uncoalesced"}).second


def test_a_program_that_fails_otherwise(plan: Callable[[str], Plan]) -> None:
    found = plan("import torch\ntorch.ones(2) @ torch.ones(3)\n")
    assert found.status == "stuck" and "another reason" in found.message and "main.py:2" in found.message


def test_printed_numbers_compare_to_rounding() -> None:
    assert same_words("loss 0.50000001 at 3", "loss 0.5 at 3")
    assert not same_words("loss 0.51", "loss 0.5")
    assert not same_words("loss 0.5", "cost 0.5")


def test_a_healed_run_that_fails_is_told(plan: Callable[[str], Plan]) -> None:
    source = (
        HEAD + "import gradmend\nif gradmend.capture.ledger.scopes.current():\n    raise ValueError('odd')\n"
    )
    found = plan(
        source.replace("import gradmend\n", "import gradmend.capture.ledger.scopes\n")
        + "(x @ w).sum().backward()\n"
    )
    assert found.status == "stuck" and "the healed run ends otherwise: ValueError: odd" in found.message


def test_the_rows_of_nested_tensors_are_compared(runner: Make) -> None:
    nested = (
        "torch.nested.nested_tensor([torch.ones(2), torch.ones({})], layout=torch.{}, requires_grad=True)"
    )
    for layout in ("jagged", "strided"):
        program = "import torch\nrows = " + nested + "\ntorch.cat(rows.unbind()).pow({}).sum().backward()\n"
        right = runner(program.format(3, layout, 2)).run({}, "plain")
        assert compare(right, runner(program.format(3, layout, 2)).run({}, "plain")).same
        for rows, power in ((4, 2), (3, 3)):
            assert not compare(right, runner(program.format(rows, layout, power)).run({}, "plain")).same
