"""Lists and dictionaries that one arm of a branch changes: every program is run on both arms, and PyTorch says which fail.

Nothing is told where both runs are fine; where both fail, something is.
"""

from __future__ import annotations

import itertools
import sys

import pytest

from gradmend.check.files import check_file

HEAD = (
    "import sys\nimport torch\nx = torch.ones(3, requires_grad=True)\nc = len(sys.argv) > 5\nh = x.tanh()\n"
)
MADE = {
    "list": "outs = [x]",
    "empty": "outs = []",
    "dict": "outs = {'x': x}",
}
# What the first arm does with `h`, and what with a list instead.
FILLED = {
    "append": "outs.append(h)",
    "extend": "outs.extend([h])",
    "insert": "outs.insert(0, h)",
    "plus": "outs += [h]",
    "anew": "outs = [h, x]",
    "item": "outs['h'] = h",
    "update": "outs.update(h=h)",
    "setdefault": "outs.setdefault('h', h)",
    "clear": "outs.append(h)\n    outs.clear()\n    outs.append(x)",
    "pop": "outs.append(h)\n    outs.pop()\n    outs.append(x)",
}
OTHER = {
    "write": "h += 1",
    "both": "outs.append(h); h += 1",
    "pass": "pass",
    "another": "outs.append(x)",
    "write and another": "h += 1\n    outs.append(x + 1)",
}
AFTER = {"": "pass", "write": "h += 1", "again": "if not c:\n    h += 1", "same": "if c:\n    h += 1"}
USED = {
    "stack": "torch.stack(outs).sum().backward()",
    "sum": "sum(outs).sum().backward()",
    "cat": "torch.cat([x, *outs]).sum().backward()",
    "loop": "total = x\nfor o in outs:\n    total = total + o\ntotal.sum().backward()",
    "comprehension": "sum([o.sum() for o in outs] + [x.sum()]).backward()",
    "last": "(outs[-1] * 2).sum().backward()",
    "first": "(outs[0] * 2).sum().backward()",
    "asked": "if len(outs) > 1:\n    torch.stack(outs).sum().backward()",
    "truth": "if outs:\n    (outs[-1] + x).sum().backward()",
    "function": "def total(outs):\n    return sum(outs).sum()\ntotal(list(outs)).backward()",
}
USED_DICT = {
    "values": "sum(outs.values()).sum().backward()",
    "get": "(outs.get('h', x) + x).sum().backward()",
    "in": "if 'h' in outs:\n    (outs['h'] + x).sum().backward()",
    "items": "total = x\nfor k, v in outs.items():\n    total = total + v\ntotal.sum().backward()",
}


def programs() -> dict[str, str]:
    found = {}
    for made, filled, other, after in itertools.product(MADE, FILLED, OTHER, AFTER):
        a_dict = made == "dict"
        if a_dict != (filled in ("item", "update", "setdefault")):
            continue
        if a_dict and "append" in OTHER[other]:
            continue
        for used, text in (USED_DICT if a_dict else USED).items():
            arms = f"if c:\n    {FILLED[filled]}\nelse:\n    {OTHER[other]}\n{AFTER[after]}\n"
            found["-".join((made, filled, other, after, used))] = f"{HEAD}{MADE[made]}\n{arms}{text}\n"
    return found


ALL = programs()


def fine(source: str, words: list[str]) -> bool | None:
    """None: it fails for a reason that is no conflict."""
    argv, sys.argv = sys.argv, words
    try:
        exec(compile(source, "main.py", "exec"), {"__name__": "__main__"})
    except RuntimeError as error:
        return False if "inplace" in str(error) else None
    except (KeyError, IndexError, AttributeError, TypeError):
        return None
    finally:
        sys.argv = argv
    return True


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("filled", FILLED)
def test_as_pytorch_has_it(made: str, filled: str) -> None:
    wrong = []
    for name, source in ALL.items():
        if not name.startswith(f"{made}-{filled}-"):
            continue
        runs = [fine(source, ["main.py"]), fine(source, ["main.py"] * 9)]
        told = [f.severity for f in check_file("/nowhere/main.py", source.encode()).findings]
        # Nobody counts what a list holds: whether there is more than one is not known.
        if False not in runs and (("error" in told) if name.endswith("asked") else told):
            wrong.append(f"{name}: told, and no run fails\n{source}")
        elif runs == [False, False] and not told:
            wrong.append(f"{name}: nothing is told, and both runs fail\n{source}")
    assert not wrong, f"{len(wrong)}\n" + "\n".join(wrong[:5])
