"""Backward calls that an edit makes one are compared with the sum of what they gave."""

from __future__ import annotations

from fix_trials import Make

from gradmend.fix.judging.compare import compare
from gradmend.fix.judging.joined import joined, parts
from gradmend.fix.judging.judge import Judge

APART = """
import torch
torch.manual_seed(0)
w = torch.randn(3, requires_grad=True)
v = torch.nn.Parameter(torch.randn(3))
for step in range({steps}):
    z = torch.tanh(w * v)
    a, b = z.sum(), (z * z).sum()
    a.backward()
    b.backward()
    with torch.no_grad():
        v -= 0.1 * v.grad
    v.grad = w.grad = None
"""
AT_ONCE = APART.replace("    a.backward()\n    b.backward()", "    (a + b).backward()")
IN_LOOP = APART.replace(
    "    a.backward()\n    b.backward()", "    for one in (a, b):\n        one.backward()"
)


def test_the_calls_of_a_series_add_up(runner: Make) -> None:
    once = runner(AT_ONCE.format(steps=3)).run({}, "plain")
    for source, lines in ((APART, (9, 10)), (IN_LOOP, (10,))):
        made = runner(source.format(steps=3))
        run = made.run({}, "plain", retain=True)
        series = [frozenset((str(made.scratch.script), n) for n in lines)]
        assert len(run.calls) == 6
        assert [parts(c) for c in joined(run, series).calls] == [2, 2, 2]
        assert compare(joined(run, series), once).exact
        other = compare(
            joined(run, series),
            runner(AT_ONCE.format(steps=3).replace("a + b", "a + 2 * b")).run({}, "plain"),
        )
        assert not other.same and "loss" in other.why


def test_a_run_that_stops_inside_a_series_ends_before_it(runner: Make) -> None:
    made = runner(APART.format(steps=9), steps=5)
    oracle = made.run({}, "heal", retain=True)
    assert oracle.outcome == "stopped" and len(oracle.calls) == 5
    judge = Judge(made, "retained", oracle, made.run({}, "plain"))
    one = judge.joining(frozenset((str(made.scratch.script), n) for n in (9, 10)))
    assert one is not None and one.bounds == {"limit": 2}
    sources = {str(made.scratch.script): AT_ONCE.format(steps=9).encode()}
    verdict = one.final(made.run(sources, "plain", **one.bounds), sources)
    assert verdict.same and verdict.exact and verdict.calls == 2
    assert judge.joining(frozenset()) is None
