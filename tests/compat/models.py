"""Small programs without conflicts, each run from one seed and summed up in all that must stay the same."""

import torch
import torch.nn.functional as F
from torch import nn


def _train(model, loss, steps=4, make=torch.optim.AdamW, **settings):
    optimizer = make(model.parameters(), lr=1e-2, **settings)
    losses, grads = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        out = loss(model)
        out.backward()
        grads += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        optimizer.step()
        losses.append(out.detach())
    return [*losses, *grads, *model.state_dict().values(), torch.get_rng_state()]


def mlp():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(16, 4))
    return _train(model, lambda m: m(torch.randn(5, 8)).square().sum())


def cnn():
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(72, 3),
    )
    return _train(model, lambda m: F.cross_entropy(m(torch.randn(4, 3, 8, 8)), torch.randint(3, (4,))))


def transformer():
    torch.manual_seed(3)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
    return _train(model, lambda m: m(torch.randn(2, 6, 16)).square().mean())


def rnn():
    torch.manual_seed(4)
    model = nn.LSTM(4, 8, 2, dropout=0.2)
    return _train(
        model, lambda m: m(torch.randn(5, 3, 4))[0].square().mean(), make=torch.optim.SGD, momentum=0.9
    )


def embedding():
    torch.manual_seed(5)
    model = nn.Sequential(nn.EmbeddingBag(10, 6, max_norm=1.0), nn.Tanh(), nn.Linear(6, 2))
    return _train(model, lambda m: m(torch.randint(10, (4, 3))).square().mean(), make=torch.optim.Adagrad)


def fused_and_clipped():
    torch.manual_seed(6)
    model = nn.Linear(6, 6)

    def loss(m):
        return m(torch.randn(3, 6)).exp().mean()

    out = _train(model, loss, fused=True)
    loss(model).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    return [*out, *(p.grad.clone() for p in model.parameters())]


def in_place_where_it_is_safe():
    torch.manual_seed(7)
    x = torch.randn(6, 6, requires_grad=True)
    y = x * 2
    y += 1
    y[0] = 0
    y[:, 1:].mul_(3)
    y.relu_()
    z = torch.zeros(6, 6)
    for i in range(6):
        z[i] = y[i] * i
    z.sum().backward()
    return [y.detach().clone(), z.detach().clone(), x.grad, torch.get_rng_state()]


def double_backward():
    torch.manual_seed(8)
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    y = (x.exp() * x.sin()).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (h,) = torch.autograd.grad(g.square().sum(), x, create_graph=True)
    h.sum().backward()
    return [y.detach(), g.detach(), h.detach(), x.grad]


def complex_numbers():
    torch.manual_seed(9)
    x = torch.randn(4, dtype=torch.complex128, requires_grad=True)
    y = torch.fft.fft(x.conj() * x.exp())
    y.real = y.real * 2
    y.abs().sum().backward()
    return [y.detach(), x.grad]


def random_in_place():
    torch.manual_seed(10)
    t = torch.empty(4)
    parts = [t.uniform_().clone(), t.normal_().clone(), t.bernoulli_(0.4).clone(), t.exponential_().clone()]
    x = torch.ones(4, requires_grad=True)
    F.dropout(x * 3, 0.5).sum().backward()
    nn.init.orthogonal_(u := torch.empty(3, 3))
    return [*parts, x.grad, u, torch.get_rng_state()]


PROGRAMS = [
    mlp,
    cnn,
    transformer,
    rnn,
    embedding,
    fused_and_clipped,
    in_place_where_it_is_safe,
    double_backward,
    complex_numbers,
    random_in_place,
]


def same(a, b):
    """Equal bit by bit, for all of two lists."""
    assert len(a) == len(b)
    for one, two in zip(a, b, strict=True):
        if one is None or two is None:
            assert one is two
            continue
        assert one.dtype == two.dtype and one.shape == two.shape and one.stride() == two.stride()
        assert torch.equal(
            one.contiguous().reshape(-1).view(torch.uint8), two.contiguous().reshape(-1).view(torch.uint8)
        )
