"""torch.compile, jit, fx, export and functionalize: as without us, also when one side of the context meets the other."""

import pytest
import torch
from torch import nn

import gradmend


class Counting:
    """A backend that counts the graphs it is given."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph.forward


def _model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(8, 2)
    )


def _in_place(x):
    y = x * 2
    y += 1
    y[0] = 0
    y.relu_()
    z = torch.empty(3, 4)
    torch.add(y.detach(), 1, out=z)
    return y.sum() + z.sum()


def _train(compiled, steps=3):
    for _ in range(steps):
        compiled(torch.ones(3, 4)).sum().backward()


def _graphs(*sides):
    """Graphs compiled for a model whose steps run inside (True) or outside (False) of watch()."""
    torch._dynamo.reset()
    backend = Counting()
    compiled = torch.compile(_model(), backend=backend)
    for inside in sides:
        if inside:
            with gradmend.watch():
                _train(compiled)
        else:
            _train(compiled)
    return backend.graphs


def test_as_many_graphs_as_without():
    plain = _graphs(False)
    assert plain >= 1
    assert _graphs(True) == plain
    assert _graphs(True, True) == plain
    assert _graphs(False, False) == plain


@pytest.mark.parametrize("sides", [(False, True), (True, False), (False, True, False, True, False)])
def test_at_most_one_more_when_it_lives_on_both_sides(sides):
    assert _graphs(*sides) <= _graphs(False) + 1


def test_no_more_graph_breaks_for_in_place_code():
    torch._dynamo.reset()
    plain = torch._dynamo.explain(_in_place)(torch.ones(3, 4, requires_grad=True))
    torch._dynamo.reset()
    with gradmend.watch():
        ours = torch._dynamo.explain(_in_place)(torch.ones(3, 4, requires_grad=True))
    assert (ours.graph_count, ours.graph_break_count) == (plain.graph_count, plain.graph_break_count)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("context", [gradmend.watch, gradmend.heal])
def test_compiled_results(backend, context):
    def gradient():
        torch._dynamo.reset()
        model = _model().eval()
        x = torch.arange(12.0).view(3, 4).requires_grad_()
        torch.compile(model, backend=backend, fullgraph=True)(x).square().sum().backward()
        return [x.grad, *(p.grad for p in model.parameters())]

    plain = gradient()
    with context():
        ours = gradient()
    for one, two in zip(plain, ours, strict=True):
        assert torch.equal(one, two)


def test_compiled_before_used_inside():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x * 2).relu_().sum(), backend="aot_eager")
    x = torch.ones(3, requires_grad=True)
    compiled(x).backward()
    with gradmend.watch() as session:
        compiled(x).backward()
    compiled(x).backward()
    assert torch.equal(x.grad, torch.full((3,), 6.0))
    assert session.outcome == "clean"


def test_compiled_optimizer_step():
    torch._dynamo.reset()
    w = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], lr=0.5)

    @torch.compile(backend="eager")
    def step():
        optimizer.step()

    with gradmend.watch() as session:
        for _ in range(2):
            optimizer.zero_grad()
            w.square().sum().backward()
            step()
    assert torch.equal(w.detach(), torch.zeros(3)) and session.outcome == "clean"


def test_script_compiled_inside_the_context():
    with gradmend.watch():

        @torch.jit.script
        def body(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            y += 1
            y[0] = 0.0
            return torch.relu_(y).sum()

        x = torch.ones(3, requires_grad=True)
        body(x).backward()
    assert torch.equal(x.grad, torch.tensor([0.0, 2.0, 2.0]))
    again = torch.ones(3, requires_grad=True)
    body(again).backward()
    assert torch.equal(again.grad, x.grad)


def test_script_of_a_module_and_trace():
    model = _model().eval()
    x = torch.ones(2, 4)
    plain = model(x)
    with gradmend.watch():
        assert torch.equal(torch.jit.script(model)(x), plain)
        assert torch.equal(torch.jit.trace(model, x)(x), plain)


def test_fx():
    with gradmend.watch():
        graph = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True)))
    x = torch.ones(2, 3, requires_grad=True)
    graph(x).sum().backward()

    def body(x):
        y = x * 2
        y += 1
        return torch.relu_(y)

    plain = torch.fx.symbolic_trace(body).code
    with gradmend.watch():
        ours = torch.fx.symbolic_trace(body)
        ours(torch.ones(2))
    assert ours.code == plain


def test_export():
    model = _model().eval()
    x = torch.ones(2, 4)
    plain = torch.export.export(model, (x,))
    with gradmend.watch():
        ours = torch.export.export(model, (x,))
        assert torch.equal(ours.module()(x), model(x))
    assert str(ours.graph) == str(plain.graph)


def test_functionalize():
    def body(x):
        y = x * 2
        y.add_(1)
        y[0] = 5
        return y

    x = torch.ones(3)
    with gradmend.watch():
        assert torch.equal(torch.func.functionalize(body)(x), body(x))
        traced = torch.fx.experimental.proxy_tensor.make_fx(torch.func.functionalize(body))(x)
        assert "add_" not in traced.code
        assert torch.equal(traced(x), body(x))


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with gradmend.watch(), FakeTensorMode():
        x = torch.ones(3, requires_grad=True)
        y = x * 2
        y.add_(1)
        y[0] = 1
        y.sum().backward()
        assert x.grad.shape == (3,)


def test_meta_tensors():
    with gradmend.watch():
        x = torch.ones(3, device="meta", requires_grad=True)
        y = x.exp()
        (y * 2).sum().backward()
        assert x.grad.device.type == "meta"


def _graph_code(body):
    torch._dynamo.reset()
    code = []

    def backend(graph, inputs):
        code.append(graph.code)
        return graph.forward

    torch.compile(body, backend=backend, fullgraph=True)(torch.ones(3, 4, requires_grad=True))
    return code


def test_functions_are_traced_as_torchs_own():
    weight = torch.ones(2, 4)

    def body(x):
        y = torch.nn.functional.linear(x * 2, weight)
        torch.relu_(y)
        torch._foreach_add_([y], 1)
        torch.add(y.detach(), 1, out=torch.empty(3, 2))
        return torch.batch_norm(y, None, None, torch.zeros(2), torch.ones(2), True, 0.1, 1e-5, False).sum()

    plain = _graph_code(body)
    assert "relu_" in plain[0] and "linear" in plain[0]
    gradmend.install()
    try:
        assert _graph_code(body) == plain
    finally:
        gradmend.uninstall()
    assert _graph_code(body) == plain


def _graphs_of_a_gradient():
    torch._dynamo.reset()
    backend = Counting()
    weight = nn.Parameter(torch.ones(2, 4))

    @torch.compile(backend=backend)
    def body(x):
        y = torch.nn.functional.linear(x, weight).exp()
        (g,) = torch.autograd.grad(y.sum(), weight, retain_graph=True)
        y.sum().backward()
        return g

    out = body(torch.ones(3, 4))
    return backend.graphs, out


def test_a_backward_inside_compiled_code():
    graphs, plain = _graphs_of_a_gradient()
    gradmend.install()
    try:
        inside, ours = _graphs_of_a_gradient()
    finally:
        gradmend.uninstall()
    assert inside <= graphs + 1 and torch.equal(ours, plain)
