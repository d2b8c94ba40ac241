"""Every rewrite on source before and after: `pairs/KIND__topic.in.py` and `.out.py`.

Comments mark the lines of the story: WRITE, SAVE, BACKWARD; behind WRITE, what carries an old graph over (CARRIED, ONCE). Each WRITE is rewritten in turn, the last first, with
the first candidate of that kind; everything else must stay byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from gradmend.fix.rewrites import KINDS, propose, syntax
from gradmend.fix.rewrites.save_for_backward import guarded
from gradmend.fix.source.candidate import Project
from gradmend.fix.source.facts import Event, Facts, Place
from gradmend.fix.source.text import Cut, read
from gradmend.model import Carrier, Frame

PAIRS = sorted((Path(__file__).parent / "pairs").glob("*.in.py"))


def marked(text: str, word: str) -> list[int]:
    return [n for n, line in enumerate(text.split("\n"), 1) if f"# {word}" in line]


def facts(text: str, write: int) -> Facts:
    saves, backwards = marked(text, "SAVE"), marked(text, "BACKWARD")
    return Facts(
        kind="silent",
        message="a leaf; a second time; a view created in no_grad mode; a checkpointed region; its base or another view; "
        "multiple views",
        writes=(Event("", None, (Place("f.py", write),)),),
        saved=Event("", None, (Place("f.py", saves[0]),), direct=False) if saves else None,
        backward=tuple(Place("f.py", n, "<module>") for n in backwards),
        second=True,
        carrier=carrier(text, write),
    )


def carrier(text: str, write: int) -> Carrier | None:
    """`# WRITE CARRIED net.h`: the place, as the module spells it."""
    match = re.search(r"# WRITE (CARRIED|ONCE) (\S+)", text.split("\n")[write - 1])
    if match is None:
        return None
    how, path = match[1].lower(), match[2]
    assert how in ("carried", "once")
    return Carrier(
        path,
        "carried" if how == "carried" else "once",
        ((path, "tensor"),),
        "f.py",
        stored=Frame("f.py", write, ""),
    )


def rewritten(kind: str, text: str) -> str:
    propose = import_module(f"gradmend.fix.rewrites.{kind}").propose
    for write in reversed(marked(text, "WRITE")):
        found = sorted(propose(Project({"f.py": text}), facts(text, write)), key=lambda c: c.rank)
        assert found, f"no candidate for line {write}"
        text = found[0].sources["f.py"]
    return text


@pytest.mark.parametrize("path", PAIRS, ids=lambda p: p.name.removesuffix(".in.py"))
def test_pair(path: Path) -> None:
    kind = path.name.split("__")[0]
    source = read(path)
    after = source.encode(rewritten(kind, source.text))
    expected = path.with_name(path.name.replace(".in.py", ".out.py")).read_bytes()
    assert after.decode(source.encoding) == expected.decode(source.encoding)
    assert after == expected


def test_every_kind_has_a_pair() -> None:
    assert {p.name.split("__")[0] for p in PAIRS} == set(KINDS)


def test_a_very_long_file_changes_in_one_line() -> None:
    lines = [f"def f{i}(x):\n    x += {i}\n    return x\n" for i in range(4000)]
    text = "".join(lines)
    write = 3 * 2500 + 2
    propose = import_module("gradmend.fix.rewrites.rebind").propose
    found = list(propose(Project({"f.py": text}), facts(text, write)))
    before, after = text.split("\n"), found[0].sources["f.py"].split("\n")
    assert [n for n, (a, b) in enumerate(zip(before, after, strict=True), 1) if a != b] == [write]
    assert after[write - 1] == "    x = x + 2500"


@pytest.mark.parametrize(
    "source",
    [
        "def f(ps):\n    for p in ps.values():\n        p.mul_(2)\n",  # the new tensor would be lost
        "def f(p):\n    p += 1\n",
        "def f(x):\n    x.data.mul_(2)\n",
        "x.requires_grad_()\nprint(x)\n",
        "nn.init.xavier_uniform_(w)\nprint(w)\n",
        "next(it)[0] += 1\nprint(it)\n",  # would run next() twice
    ],
)
def test_rebind_leaves_alone_what_it_would_break(source: str) -> None:
    propose = import_module("gradmend.fix.rewrites.rebind").propose
    for line in range(1, source.count("\n") + 1):
        assert not list(propose(Project({"f.py": source}), facts(source, line)))


KEPT = """class Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.x = x  # the input
        y = x @ w
        ctx.k, ctx.w = 2, w
        return y

    @staticmethod
    def backward(ctx, g):
        \"\"\"By hand.\"\"\"
        w = 1
        return ctx.k * g @ ctx.w.t(), ctx.x.t() @ g
"""
SAVED = """class Keep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        # the input
        y = x @ w
        ctx.k = 2
        ctx.save_for_backward(x, w)
        return y

    @staticmethod
    def backward(ctx, g):
        \"\"\"By hand.\"\"\"
        x, w_saved = ctx.saved_tensors
        w = 1
        return ctx.k * g @ w_saved.t(), x.t() @ g
"""


def test_what_hangs_on_ctx_is_saved_in_one_call() -> None:
    known = [Facts(saved=Event("Keep", slot=f"ctx.{name}")) for name in ("x", "w", "x")]
    (found,) = guarded(Project({"f.py": KEPT}), known)
    assert found.sources["f.py"] == SAVED
    assert not list(guarded(Project({"f.py": KEPT}), [Facts(saved=Event("Keep", slot="ctx.other"))]))
    assert not list(guarded(Project({"f.py": KEPT}), [Facts(saved=Event("Other", slot="ctx.x"))]))


@pytest.mark.parametrize(
    "source",
    [
        "a.backward()\nn = net.weight.grad.norm()\nb.backward()  # BACKWARD\n",
        "a.backward()\nopt.step()\nb.backward()  # BACKWARD\n",
        "a.backward()\na = g(x)\na.backward()  # BACKWARD\n",
        "a.backward()\nlog(net)\nb.backward()  # BACKWARD\n",
        "a.backward()\nif x: pass\nb.backward()  # BACKWARD\n",
        "a.backward(seed)\nb.backward()  # BACKWARD\n",
        "a.backward()\nb.backward(create_graph=True)  # BACKWARD\n",
        "for a in losses:\n    a.backward()  # BACKWARD\nprint(a)\n",
        "for a in losses():\n    a.backward()  # BACKWARD\n",
        "for a in losses:\n    a.backward()  # BACKWARD\n    clip(net)\n",
    ],
)
def test_losses_are_not_summed_where_something_could_tell(source: str) -> None:
    propose = import_module("gradmend.fix.rewrites.sum_losses").propose
    assert not list(propose(Project({"f.py": source}), facts(source, 1)))


def test_lines_of_an_edited_file_are_found_in_the_original() -> None:
    was, now = Project({"f.py": "a\nb\nc\nd\n"}), Project({"f.py": "a\nnew\nb\nc2\nd\n"})
    assert now.lines_before([("f.py", 3), ("f.py", 5)], was) == {("f.py", 2), ("f.py", 4)}
    assert not now.lines_before([("f.py", 4)], was)


def test_what_cannot_be_written_down_ends_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cuts in one place make no candidate; what the same rewrite and the others propose stays."""
    source = "h = f(w)\nh += 1  # WRITE\ng(h).backward()  # BACKWARD\n"
    project, known = Project({"f.py": source}), facts(source, 2)
    wanted = propose(project, known)
    rebind = import_module("gradmend.fix.rewrites.rebind")
    rebound = rebind.rebound

    def overlapping(*args: object) -> Iterator[tuple[str, list[Cut]]]:
        yield "overlap", [(0, 8, "h"), (4, 6, "")]
        yield from rebound(*args)

    monkeypatch.setattr(rebind, "rebound", overlapping)
    assert [c.title for c in propose(project, known)] == [c.title for c in wanted] != []


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([1], "line 1"),
        ([2], "lines 2-4"),
        ([5], "lines 5-6"),
        ([7, 8], "lines 7 and 8"),
        ([7, 8, 9], "lines 7-9"),
        ([1, 2], "lines 1-4"),
        ([1, 5, 8], "lines 1, 5-6 and 8"),
    ],
)
def test_statements_are_named_with_all_their_lines(lines: list[int], told: str) -> None:
    source = "a\nwith b:\n    c\n    d\nf(\n  1)\ng\nh\ni\n"
    tree = Project({"f.py": source}).tree("f.py")
    assert tree is not None
    body = {tree.lines(n)[0]: n for n in tree.module.body}
    assert syntax.spoken(tree, [body[n] for n in lines]) == told


def test_a_backward_in_a_block_is_named_with_the_block() -> None:
    source = "p.add_(g)  # WRITE\nfor loss in losses:\n    loss.backward()  # BACKWARD\n    log(loss)\n"
    (found,) = import_module("gradmend.fix.rewrites.move").propose(
        Project({"f.py": source}), facts(source, 1)
    )
    assert found.title == "move line 1 below the backward() in lines 2-4"


def own_loops(source: str) -> list[str]:
    found = import_module("gradmend.fix.rewrites.move").propose(Project({"f.py": source}), facts(source, 3))
    return [c.sources["f.py"] for c in found if "a loop of its own" in c.title]


LOOP = "for b in blocks:\n    x = b(x)\n    b.s.mul_(2)  # WRITE\nx.sum().backward()  # BACKWARD\n"


def test_a_line_of_a_loop_gets_a_loop_of_its_own() -> None:
    """The forward must run before the backward, and the update of what it read after that."""
    wanted = "for b in blocks:\n    x = b(x)\nx.sum().backward()  # BACKWARD\nfor b in blocks:\n    b.s.mul_(2)  # WRITE\n"
    assert own_loops(LOOP) == [wanted]
    assert own_loops(LOOP.replace("in blocks", "in net.children()"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("in blocks", "in loader()"),  # may give others the next time
        ("b.s.mul_(2)", "b.s.mul_(x)"),  # the last x of all would do it
        ("x = b(x)", "if x: break"),
        ("x = b(x)\n    ", "x = b(x); "),
    ],
)
def test_a_line_stays_in_a_loop_that_it_needs(old: str, new: str) -> None:
    assert own_loops(LOOP.replace(old, new)) == []
