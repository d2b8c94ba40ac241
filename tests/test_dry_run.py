"""Dry runs: the verdicts of watch(), on tensors that have no values."""

from __future__ import annotations

import json
import resource
import sys
from collections import OrderedDict, UserDict
from pathlib import Path
from typing import Any

import pytest
import torch

import gradmend
import warm


class Block(torch.nn.Module):
    def __init__(self, wide: int, broken: bool) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(wide, 4 * wide), torch.nn.Linear(4 * wide, wide)
        self.norm = torch.nn.LayerNorm(wide)
        self.broken = broken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(self.norm(x)).sigmoid()
        if self.broken:
            h += 1
        return x + self.b(h)


def programs() -> dict[str, Any]:
    def kept_output(x: torch.Tensor) -> torch.Tensor:
        return x.exp().add_(1)

    def kept_input(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        out = y * y
        y.zero_()
        return out

    def data(x: torch.Tensor) -> torch.Tensor:
        h = x.exp()
        h.data.add_(1)
        return h

    def another_row(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        out = y[0] ** 2
        y[1:].mul_(10)
        return out

    def harmless(x: torch.Tensor) -> torch.Tensor:
        y = x + 2
        y.add_(1)
        return y

    def buffer(x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(4, 4)
        for k in range(1, 4):
            h[k] = h[k - 1] * x[k]
        return h

    def second(x: torch.Tensor) -> None:
        loss = (x * x).sum()
        loss.backward()
        loss.backward()

    return {f.__name__: f for f in (kept_output, kept_input, data, another_row, harmless, buffer, second)}


@pytest.mark.parametrize("name", programs())
def test_the_same_verdict_as_a_real_run(name: str) -> None:
    """Same kinds, same lines to look at."""
    fn = programs()[name]
    x = torch.rand(4, 4, requires_grad=True)
    dry = gradmend.dry_run(fn, x)
    assert x.grad is None
    culprits: list[Any] = []
    real = torch.rand(4, 4, requires_grad=True)
    try:
        with gradmend.watch() as session:
            out = fn(real)
            if out is not None:
                out.sum().backward()
    except gradmend.ConflictError:
        pass
    except RuntimeError as error:
        session.conflicts.append(gradmend.errors.attached(error))  # type: ignore[attr-defined]
    culprits = [(c.kind, c.culprits[:1]) for c in session.conflicts]
    assert culprits[:1] == [(c.kind, c.culprits[:1]) for c in dry.conflicts][:1]
    assert dry.outcome == (
        "conflict" if any(kind != "refused-but-right" for kind, _ in culprits) else "clean"
    )


def test_a_real_model_is_copied_without_its_values_and_left_alone() -> None:
    model = Block(8, True)
    before = [p.clone() for p in model.parameters()]
    session = gradmend.dry_run(model, torch.ones(2, 8))
    assert session.outcome == "conflict" and len(session.conflicts) == 1
    assert session.conflicts[0].saved is not None and session.conflicts[0].saved.op == "sigmoid"
    assert all(p.grad is None and torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert gradmend.dry_run(Block(8, False), torch.ones(2, 8)).outcome == "clean"


def test_a_whole_step_with_its_optimizer() -> None:
    def step() -> None:
        model = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        optimizer = torch.optim.AdamW(model.parameters())
        first, second = model(torch.ones(2, 3, 16)).sum(), model(torch.ones(2, 5, 16)).sum()
        first.backward()
        optimizer.step()
        second.backward()

    session = gradmend.dry_run(step)
    assert session.outcome == "conflict"
    lines = {c.culprits[0].line for c in session.conflicts if c.kind == "error"}
    assert lines == {step.__code__.co_firstlineno + 5}, "the optimizer's step"


def test_where_a_value_is_asked_for_it_says_so() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return x

    session = gradmend.dry_run(fn, torch.ones(3, requires_grad=True))
    assert session.outcome == "failed" and session.error is not None
    assert "asks for a value" in session.error["message"]
    assert session.error["line"] == fn.__code__.co_firstlineno + 1


REACHED = "reached a real tensor (shape {}, line {}) that is not among its arguments: pass the module"


def stopped(session: Any, shape: tuple[int, ...], line: int) -> bool:
    return session.outcome == "failed" and REACHED.format(shape, line) in session.error["message"]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("trained", [False, True])
def test_a_model_of_the_closure_is_left_as_it_was(kind: Any, trained: bool) -> None:
    model, x = torch.nn.Linear(2, 1), torch.ones(4, 2)
    optimizer = kind(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    def forward() -> None:
        model(x).sum().backward()

    if trained:
        step()
    before = [(p.detach().clone(), p.grad, p._version) for p in model.parameters()]
    state = {p: dict(s) for p, s in optimizer.state.items()}
    first = step.__code__.co_firstlineno
    assert stopped(gradmend.dry_run(step), (1, 2), first + 1)
    assert stopped(gradmend.dry_run(forward), (1, 2), forward.__code__.co_firstlineno + 1)
    assert gradmend.dry_run(optimizer.step).outcome == "failed"
    for p, (value, grad, version) in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, value) and p.grad is grad and p._version == version
    assert {p: dict(s) for p, s in optimizer.state.items()} == state
    weight = model.weight.detach().clone()
    step()
    assert not torch.equal(weight, model.weight)


def test_a_tensor_of_the_closure_is_not_written() -> None:
    w, b = torch.zeros(3, requires_grad=True), torch.zeros(3)

    def leaf(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            w.add_(1)
        return x * 2

    def plain(x: torch.Tensor) -> torch.Tensor:
        b.add_(x.detach())
        return x * b

    def out(x: torch.Tensor) -> torch.Tensor:
        torch.add(x.detach(), 1, out=b)
        return x * b

    def caught(x: torch.Tensor) -> torch.Tensor:
        try:
            b.fill_(1)
        except RuntimeError:
            pass
        return x * b

    def data(x: torch.Tensor) -> torch.Tensor:
        b.data = x.detach() + 1
        return x * b

    x = torch.ones(3, requires_grad=True)
    for fn, at in ((leaf, 2), (plain, 1), (out, 1), (data, 1)):
        assert stopped(gradmend.dry_run(fn, x), (3,), fn.__code__.co_firstlineno + at), fn.__name__
    assert gradmend.dry_run(caught, x).outcome == "failed"
    assert w.tolist() == b.tolist() == [0, 0, 0] and w.grad is None and w._version == b._version == 0


def test_a_gradient_that_a_function_gives_to_the_closure_is_taken_back() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, w: torch.Tensor) -> torch.Tensor:
            return w * 2

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0] * 2

    w = torch.ones(3, requires_grad=True)
    session = gradmend.dry_run(lambda x: x * Twice.apply(w), torch.ones(3))
    assert session.outcome == "failed" and "reached a real tensor" in session.error["message"]  # type: ignore[index]
    assert w.grad is None


def test_constants_of_the_closure_are_read() -> None:
    index, mask, scale = torch.arange(3), torch.ones(3, dtype=torch.bool), torch.full((3,), 2.0)
    teacher = torch.nn.Linear(3, 3)

    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher(scale)
        return torch.where(mask, x[index] * scale, 0.0) - wanted

    assert gradmend.dry_run(fn, torch.ones(3, requires_grad=True)).outcome == "clean"
    assert all(p.grad is None for p in teacher.parameters())


def test_a_module_among_the_arguments_is_faked_too() -> None:
    def step(model: torch.nn.Module, x: torch.Tensor) -> None:
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        model(x).sum().backward()
        optimizer.step()

    model = torch.nn.Linear(2, 1)
    before = model.weight.detach().clone()
    assert gradmend.dry_run(step, model, torch.ones(4, 2)).outcome == "clean"
    assert model.weight.grad is None and torch.equal(model.weight, before)


class Output(OrderedDict[str, torch.Tensor]):
    """A dict with attributes: a leaf to PyTorch."""


def test_a_mapping_of_any_class_is_looked_into() -> None:
    x = torch.ones(3, requires_grad=True)
    for kind in (Output, dict, UserDict):
        assert gradmend.dry_run(lambda x, kind=kind: kind(out=x.exp().add_(1)), x).outcome == "conflict"
        assert gradmend.dry_run(lambda x, kind=kind: [kind(out=x.exp() + 1)], x).outcome == "clean"


def test_a_result_that_shows_no_tensor_is_not_clean() -> None:
    class Holder:
        def __init__(self, t: torch.Tensor) -> None:
            self.t = t

    def generator(x: torch.Tensor) -> Any:
        yield x.exp().add_(1)

    def step(x: torch.Tensor) -> Holder:
        x.exp().sum().backward()
        return Holder(x)

    x = torch.ones(3, requires_grad=True)
    for fn, name in ((lambda x: Holder(x.exp().add_(1)), "Holder"), (generator, "generator")):
        session = gradmend.dry_run(fn, x)
        assert session.outcome == "failed" and f"an object of type {name}" in session.error["message"]  # type: ignore[index]
    assert gradmend.dry_run(step, x).outcome == "clean", "it ran its own backward"


BIG = """\
import torch

class Layer(torch.nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(wide, wide, bias=False) for _ in range(4))
        self.up, self.down = torch.nn.Linear(wide, 4 * wide), torch.nn.Linear(4 * wide, wide)
        self.norm = torch.nn.LayerNorm(wide)

    def forward(self, x):
        y = self.norm(x)
        a = (self.q(y) @ self.k(y).mT).softmax(-1)
        a *= 2
        x = x + self.o(a @ self.v(y))
        return x + self.down(self.up(x).relu())

def step():
    model = torch.nn.Sequential(*(Layer(16384) for _ in range(22)))
    print(sum(p.numel() for p in model.parameters()) // 10**9, "billion")
    return model, torch.ones(1, 2048, 16384)
"""


def test_seventy_billion_parameters(tmp_path: Path) -> None:
    (tmp_path / "big.py").write_text(BIG)
    words = [sys.executable, "-m", "gradmend", "dry-run", "--report", "out.json", "big.py:step"]
    done = warm.run(words, cwd=tmp_path, cold=True)
    assert done.returncode == 1, done.stderr
    assert "70 billion" in done.stdout and "conflict, 1 conflict" in done.stdout
    assert "big.py:13" in done.stderr and "a *= 2" in done.stderr
    assert "not decided without values" in done.stdout
    # All children of this process so far; torch itself takes some 300 MB.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 4_000_000


@pytest.mark.parametrize("target", ["big", "nowhere:step", "big.py:nothing"])
def test_bad_targets_are_one_line(tmp_path: Path, target: str) -> None:
    (tmp_path / "big.py").write_text("x = 1\n")
    words = [sys.executable, "-m", "gradmend", "dry-run", target]
    done = warm.run(words, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("gradmend: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("factory", "code"),
    [("model", 2), ("named", 2), ("Model", 2), ("listed", 1), ("paired", 1)],
)
def test_a_model_that_never_ran_is_not_called_clean(tmp_path: Path, factory: str, code: int) -> None:
    (tmp_path / "made.py").write_text(
        "import torch\n\n\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        h = x.sigmoid()\n"
        "        h *= 2\n"
        "        return h\n\n\n"
        "def model(): return Model()\n"
        "def named(): return {'model': Model(), 'x': torch.ones(2)}\n"
        "def listed(): return [Model(), torch.ones(2, requires_grad=True)]\n"
        "def paired(): return Model(), torch.ones(2, requires_grad=True)\n"
    )
    words = [sys.executable, "-m", "gradmend", "dry-run", f"made.py:{factory}"]
    done = warm.run(words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert ("nothing ran" in done.stderr) == (code == 2)


def test_the_script_that_starts_our_commands_is_no_line_of_the_program(tmp_path: Path) -> None:
    from gradmend.folder import is_ours, launched_by

    launched_by("/somewhere/bin/gradmend")
    launched_by("/somewhere/train.py")
    assert is_ours("/somewhere/bin/gradmend") and not is_ours("/somewhere/train.py")
    command = Path(sys.executable).with_name("gradmend")
    if not command.exists():
        pytest.skip("Gradmend is on the path here, not installed")
    (tmp_path / "big.py").write_text(
        "import torch\ndef make():\n    return lambda x: x.exp().add_(1), torch.ones(3, requires_grad=True)\n"
    )
    out = tmp_path / "out.json"
    words = [str(command), "dry-run", "--report", str(out), "big.py:make"]
    done = warm.run(words, cwd=tmp_path)
    (conflict,) = json.loads(out.read_text())["conflicts"]
    assert conflict["backward"] is None and str(command) not in out.read_text()
    assert "but backward() still needs" in conflict["message"], done.stderr


def test_a_lazy_module_is_one_clear_sentence() -> None:
    with pytest.raises(ValueError, match=r"0\.weight of Sequential has no shape yet"):
        gradmend.dry_run(torch.nn.Sequential(torch.nn.LazyLinear(4)), torch.ones(3, 5))


def test_looking_at_addresses_warns_nobody(recwarn: pytest.WarningsRecorder) -> None:
    torch.set_warn_always(True)
    try:
        gradmend.dry_run(lambda x: x.exp().data_ptr(), torch.ones(3, requires_grad=True))
    finally:
        torch.set_warn_always(False)
    assert not [w for w in recwarn if "FakeTensor" in str(w.message)]


def test_a_failed_run_says_why_when_it_is_printed() -> None:
    session = gradmend.dry_run(lambda x: x.sum().item(), torch.ones(3, requires_grad=True))
    assert session.outcome == "failed" and session.error["message"] in str(session)
