"""Of several edits those stay that the proof needs."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from gradmend.fix.judging.compare import Verdict
from gradmend.fix.search.attempts import Attempts
from gradmend.fix.search.solving import Solved, Solver
from gradmend.fix.source.candidate import Candidate, Project
from gradmend.fix.source.text import Text
from gradmend.fix.source.undoing import changes, without


def steps(*texts: str) -> list[Project]:
    return [Project({"f.py": t, "g.py": "pass\n"}) for t in texts]


def test_an_edit_of_several_is_taken_back() -> None:
    made = steps(
        "hs = [x.exp(), x.tanh()]\ny = a * b\n",
        "hs = [x.exp(), x.tanh().clone()]\ny = a * b\n",
        "hs = [x.exp().clone(), x.tanh().clone()]\ny = a * b\n",
        "hs = [x.exp().clone(), x.tanh().clone()]\ny = a.clone() * b\n",
    )
    assert [p.sources["f.py"] for p in without(made, 1)] == [
        "hs = [x.exp(), x.tanh()]\ny = a * b\n",
        "hs = [x.exp().clone(), x.tanh()]\ny = a * b\n",
        "hs = [x.exp().clone(), x.tanh()]\ny = a.clone() * b\n",
    ]
    assert without(made, 3)[-1] == made[2]
    assert without(made, 2)[-1].sources["f.py"] == "hs = [x.exp(), x.tanh().clone()]\ny = a.clone() * b\n"


def test_what_a_later_edit_builds_on_stays() -> None:
    made = steps("y = a * b\n", "y = (a + 0) * b\n", "y = (a + 1) * b\n")
    with pytest.raises(ValueError, match="builds on it"):
        without(made, 1)


def test_a_copy_is_one_change() -> None:
    assert changes("y = f(x)", "y = f(x.clone())") == [(7, 7, ".clone()")]


class Proof:
    """Stands for the trials: the program is right where it has these copies."""

    bounds: ClassVar[dict[str, int]] = {}

    def __init__(self, *needed: str) -> None:
        self.needed = needed

    def run(self, sources: dict[str, bytes], mode: str) -> bytes:
        return sources["f.py"]

    def final(self, trial: bytes, sources: dict[str, bytes]) -> Verdict:
        return Verdict(all(n.encode() in trial for n in self.needed))


@pytest.mark.parametrize(
    ("needed", "left"),
    [
        (("b.clone()", "c.clone()"), "y = a + b.clone() + c.clone() + d\n"),
        (("d.clone()",), "y = a + b + c + d.clone()\n"),
        (
            ("a.clone()", "b.clone()", "c.clone()", "d.clone()"),
            "y = a.clone() + b.clone() + c.clone() + d.clone()\n",
        ),
    ],
)
def test_copies_that_the_proof_does_not_need_are_dropped(needed: tuple[str, ...], left: str) -> None:
    text = "y = a + b + c + d\n"
    made, chosen = steps(text), []
    for name in "abcd":
        text = text.replace(f" {name}", f" {name}.clone()")
        made += steps(text)
        chosen.append(Candidate(f"clone `{name}`", "clone_save", 40, {"f.py": text}))
    proof: Any = Proof(*needed)
    attempts = Attempts(proof, lambda words: None, 60)
    attempts.texts = {f: Text(t) for f, t in made[0].sources.items()}
    found, project = Solver(attempts, []).smallest(Solved(chosen, Verdict(True), proof), made)
    assert project.sources["f.py"] == left
    assert [c.title for c in found.chosen] == [f"clone `{n[0]}`" for n in sorted(needed)]
