"""Programs whose second backward PyTorch refuses, each with the line that carries the old graph and the right edits.

A line that ends in `# carrier` is what a story must name first. `right` are edits, each a program that a maintainer would
take: what `fix --write` leaves must print what one of them prints.
"""

from __future__ import annotations

from dataclasses import dataclass

Edits = tuple[tuple[str, str], ...]

TOP = """import json
import torch
from torch import nn

torch.manual_seed(0)
"""
END = """
print(json.dumps(log))
"""


@dataclass(frozen=True)
class Program:
    name: str
    carrier: str  # the name as written
    files: dict[str, str]
    right: tuple[Edits, ...]

    def fixed(self, edits: Edits) -> dict[str, str]:
        files = dict(self.files)
        for old, new in edits:
            at = [f for f, text in files.items() if old in text]
            assert at, f"{self.name}: {old!r} is in none of its files"
            files[at[0]] = files[at[0]].replace(old, new)
        return files

    def carriers(self) -> set[tuple[str, int]]:
        return {
            (file, number)
            for file, text in self.files.items()
            for number, line in enumerate(text.splitlines(), 1)
            if line.endswith("# carrier")
        }


PROGRAMS: list[Program] = []


def make(name: str, carrier: str, main: str, right: tuple[Edits, ...], modules: dict[str, str]) -> Program:
    files = {"main.py": TOP + main.strip("\n") + "\n" + END}
    files |= {f"{module}.py": text.strip("\n") + "\n" for module, text in modules.items()}
    return Program(name, carrier, files, right)


def program(name: str, carrier: str, main: str, *right: Edits, **modules: str) -> None:
    PROGRAMS.append(make(name, carrier, main, right, modules))


program(
    "state_on_attribute",
    "self.h",
    """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out, self.h = nn.GRUCell(3, 4), nn.Linear(4, 1), None

    def forward(self, x):
        if self.h is None:
            self.h = self.cell(x)
        else:
            self.h = self.cell(x, self.h)  # carrier
        return self.out(self.h)


net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.5)
log = []
for epoch in range(3):
    cost = 0
    for t in range(5):
        y = net(torch.randn(2, 3))
        cost = cost + (y - 1).pow(2).mean()
    cost.backward()
    opt.step()
    opt.zero_grad()
    log.append(cost.item())
""",
    (("    opt.zero_grad()\n", "    opt.zero_grad()\n    net.h = net.h.detach()\n"),),
)

program(
    "zeroed_in_place",
    "state",
    """
lin = nn.Linear(4, 4)
opt = torch.optim.SGD(lin.parameters(), lr=0.1)
state = torch.zeros(2, 4)
log = []
for batch in range(3):
    state.zero_()  # carrier
    out = []
    for t in range(3):
        state = 0.9 * state + lin(torch.randn(2, 4)).tanh()
        out.append(state)
    loss = torch.stack(out).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("state.zero_()", "state = torch.zeros(2, 4)"),),
)

program(
    "lstm_pair_in_a_loop",
    "state",
    """
rnn, head = nn.LSTM(3, 4), nn.Linear(4, 1)
opt = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=0.05)
data = torch.randn(12, 2, 3)
state = (torch.zeros(1, 2, 4), torch.zeros(1, 2, 4))
log = []
for start in range(0, 12, 4):
    out, state = rnn(data[start : start + 4], state)  # carrier
    loss = head(out).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("    opt.step()\n", "    opt.step()\n    state = tuple(s.detach() for s in state)\n"),),
)

program(
    "lstm_pair_on_a_module",
    "self.hidden",
    """
from model import Tagger

net = Tagger()
opt = torch.optim.SGD(net.parameters(), lr=0.3)
data = torch.randn(3, 5, 2, 3)
log = []
for sentence in data:
    opt.zero_grad()
    scores = net(sentence)
    loss = (scores - 0.5).pow(2).mean()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("    opt.step()\n", "    opt.step()\n    net.hidden = tuple(h.detach() for h in net.hidden)\n"),),
    model="""
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 4)
        self.head = nn.Linear(4, 2)
        self.hidden = self.start()

    def start(self):
        return (torch.zeros(1, 2, 4), torch.zeros(1, 2, 4))

    def forward(self, words):
        features, self.hidden = self.rnn(words, self.hidden)  # carrier
        return self.head(features)
""",
)

program(
    "closure_cell",
    "h",
    """
def recurrent(cell):
    h = torch.zeros(2, 4)

    def step(x):
        nonlocal h
        h = torch.tanh(cell(torch.cat([x, h], 1)))  # carrier
        return h

    return step


cell = nn.Linear(7, 4)
opt = torch.optim.SGD(cell.parameters(), lr=0.2)
step = recurrent(cell)
log = []
for i in range(4):
    loss = step(torch.randn(2, 3)).pow(2).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("cat([x, h], 1)", "cat([x, h.detach()], 1)"),),
)

program(
    "closure_of_main",
    "hidden",
    """
def main():
    cell, read = nn.RNNCell(3, 4), nn.Linear(4, 1)
    opt = torch.optim.SGD([*cell.parameters(), *read.parameters()], lr=0.2)
    hidden = torch.zeros(2, 4)

    def unroll(xs):
        nonlocal hidden
        for x in xs:
            hidden = cell(x, hidden)  # carrier
        return read(hidden)

    log = []
    for i in range(3):
        loss = (unroll(torch.randn(4, 2, 3)) - 1).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    return log


log = main()
""",
    (("        opt.step()\n", "        opt.step()\n        hidden = hidden.detach()\n"),),
)

program(
    "item_of_a_dict",
    'memory["h"]',
    """
cell, read = nn.GRUCell(3, 4), nn.Linear(4, 1)
opt = torch.optim.SGD([*cell.parameters(), *read.parameters()], lr=0.2)
memory = {"h": torch.zeros(2, 4), "steps": 0}


def chunk(xs):
    total = 0
    for x in xs:
        memory["h"] = cell(x, memory["h"])  # carrier
        memory["steps"] += 1
        total = total + read(memory["h"]).pow(2).mean()
    return total


log = []
for i in range(3):
    loss = chunk(torch.randn(3, 2, 3))
    loss.backward()
    opt.step()
    opt.zero_grad()
    log.append(loss.item())
""",
    (("    opt.zero_grad()\n", '    opt.zero_grad()\n    memory["h"] = memory["h"].detach()\n'),),
)

program(
    "items_of_a_list",
    "states[i]",
    """
layers = nn.ModuleList([nn.GRUCell(3, 4), nn.GRUCell(4, 4)])
opt = torch.optim.SGD(layers.parameters(), lr=0.2)
states = [torch.zeros(2, 4), torch.zeros(2, 4)]


def forward(x):
    for i, layer in enumerate(layers):
        states[i] = layer(x, states[i])  # carrier
        x = states[i]
    return x


log = []
for i in range(3):
    loss = 0
    for t in range(3):
        loss = loss + (forward(torch.randn(2, 3)) - 0.1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("    opt.step()\n", "    opt.step()\n    states = [s.detach() for s in states]\n"),),
)

program(
    "memory_that_grows",
    "self.memory.append",
    """
class Bank(nn.Module):
    def __init__(self):
        super().__init__()
        self.key = nn.Linear(3, 4)
        self.memory = []

    def forward(self, x):
        k = self.key(x).tanh()
        past = sum(m.mean(0) for m in self.memory) if self.memory else 0
        self.memory.append(k)  # carrier
        return (k + past).pow(2).mean()


bank = Bank()
opt = torch.optim.SGD(bank.parameters(), lr=0.2)
log = []
for i in range(4):
    loss = bank(torch.randn(5, 3))
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("self.memory.append(k)", "self.memory.append(k.detach())"),),
)

program(
    "cached_property",
    "self.basis",
    """
from functools import cached_property


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.raw = nn.Parameter(torch.randn(4, 4))

    @cached_property
    def basis(self):
        return torch.linalg.qr(self.raw).Q  # carrier

    def forward(self, x):
        return x @ self.basis


net = Spectral()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
log = []
for i in range(3):
    loss = (net(torch.randn(5, 4)) - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("@cached_property", "@property"),),
)

program(
    "cache_on_an_attribute",
    "self._kernel",
    """
class Smooth(nn.Module):
    def __init__(self):
        super().__init__()
        self.width = nn.Parameter(torch.tensor(1.5))
        self._kernel = None

    def kernel(self):
        if self._kernel is None:
            at = torch.arange(-2.0, 3.0)
            self._kernel = torch.exp(-(at**2) / self.width**2)  # carrier
        return self._kernel

    def forward(self, x):
        return x * self.kernel()


net = Smooth()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
log = []
for i in range(3):
    loss = (net(torch.randn(6, 5)) - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("        if self._kernel is None:\n", "        if True:\n"),),
)

program(
    "buffer",
    "self.ema",
    """
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 4)
        self.register_buffer("ema", torch.zeros(4))

    def forward(self, x):
        z = self.lin(x)
        self.ema = 0.9 * self.ema + 0.1 * z.mean(0)  # carrier
        return z.tanh() - self.ema


net = Norm()
opt = torch.optim.SGD(net.parameters(), lr=0.2)
log = []
for i in range(4):
    loss = (net(torch.randn(8, 3)) - 0.3).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("    opt.step()\n", "    opt.step()\n    net.ema = net.ema.detach()\n"),),
)

program(
    "made_once_before_the_loop",
    "features",
    """
encoder, head = nn.Sequential(nn.Linear(3, 6), nn.Tanh()), nn.Linear(6, 1)
opt = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
x, target = torch.randn(8, 3), torch.randn(8, 1)
features = encoder(x)  # carrier
log = []
for i in range(4):
    loss = (head(features) - target).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (
        ("features = encoder(x)  # carrier\n", ""),
        ("    loss = (head", "    features = encoder(x)\n    loss = (head"),
    ),
)

program(
    "regulariser_made_once",
    "penalty",
    """
net = nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
penalty = 0.01 * sum(p.pow(2).sum() for p in net.parameters())  # carrier
x, target = torch.randn(8, 3), torch.randn(8, 1)
log = []
for i in range(4):
    loss = (net(x) - target).pow(2).mean() + penalty
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (
        ("penalty = 0.01 * sum(p.pow(2).sum() for p in net.parameters())  # carrier\n", ""),
        (
            "    loss = (net",
            "    penalty = 0.01 * sum(p.pow(2).sum() for p in net.parameters())\n    loss = (net",
        ),
    ),
)

program(
    "two_losses_of_one_forward",
    "h",
    """
trunk, a, b = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 2)
opt = torch.optim.SGD([*trunk.parameters(), *a.parameters(), *b.parameters()], lr=0.1)
log = []
for i in range(3):
    x = torch.randn(5, 3)
    h = torch.tanh(trunk(x))  # carrier
    first = a(h).pow(2).mean()
    second = (b(h) - 1).pow(2).mean()
    opt.zero_grad()
    first.backward()
    second.backward()
    opt.step()
    log += [first.item(), second.item()]
""",
    (("    first.backward()\n    second.backward()\n", "    (first + second).backward()\n"),),
)

program(
    "two_losses_two_optimizers",
    "h",
    """
trunk, actor, critic = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 1)
opt_a = torch.optim.SGD([*trunk.parameters(), *actor.parameters()], lr=0.1)
opt_c = torch.optim.SGD(critic.parameters(), lr=0.1)
log = []
for i in range(3):
    x = torch.randn(5, 3)
    h = trunk(x).relu()  # carrier
    pi = actor(h).log_softmax(1)[:, 0].mean()
    opt_a.zero_grad()
    opt_c.zero_grad()
    pi.backward()
    value = (critic(h) - x.sum(1, keepdim=True)).pow(2).mean()
    value.backward()
    opt_a.step()
    opt_c.step()
    log += [pi.item(), value.item()]
""",
    (("    pi.backward()\n", "    pi.backward(retain_graph=True)\n"),),
)

program(
    "gan",
    "fake",
    """
g, d = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)), nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
opt_g, opt_d = torch.optim.SGD(g.parameters(), lr=0.1), torch.optim.SGD(d.parameters(), lr=0.1)
bce = nn.BCEWithLogitsLoss()
log = []
for i in range(3):
    real = torch.randn(16, 2) + 2
    fake = g(torch.randn(16, 2))  # carrier
    opt_d.zero_grad()
    d_loss = bce(d(real), torch.ones(16, 1)) + bce(d(fake), torch.zeros(16, 1))
    d_loss.backward()
    opt_d.step()
    opt_g.zero_grad()
    g_loss = bce(d(fake), torch.ones(16, 1))
    g_loss.backward()
    opt_g.step()
    log += [d_loss.item(), g_loss.item()]
""",
    (("d(fake), torch.zeros", "d(fake.detach()), torch.zeros"),),
)

program(
    "running_total",
    "total",
    """
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
total = 0
log = []
for i in range(4):
    loss = net(torch.randn(5, 3)).pow(2).mean()
    total += loss  # carrier
    opt.zero_grad()
    total.backward()
    opt.step()
    log.append(loss.item())
""",
    (("total += loss", "total += loss.item()"), ("total.backward", "loss.backward")),
    (("    opt.step()\n", "    opt.step()\n    total = total.detach()\n"),),
)

program(
    "same_loss_twice",
    "loss",
    """
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
x = torch.randn(5, 3)
loss = net(x).pow(2).mean()  # carrier
loss.backward()
loss.backward()
log = [p.grad.sum().item() for p in net.parameters()]
""",
    (("loss.backward()\nloss", "loss.backward(retain_graph=True)\nloss"),),
)

program(
    "copied_into",
    "state",
    """
cell = nn.Linear(4, 4)
opt = torch.optim.SGD(cell.parameters(), lr=0.1)
state, start = torch.zeros(2, 4), torch.randn(2, 4)
log = []
for episode in range(3):
    state.copy_(start)  # carrier
    loss = 0
    for t in range(3):
        state = torch.tanh(cell(state))
        loss = loss + state.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("state.copy_(start)", "state = start.clone()"),),
)

program(
    "zeroed_by_a_reset_elsewhere",
    "self.trace",
    """
from eligibility import Trace

trace = Trace(4)
opt = torch.optim.SGD(trace.parameters(), lr=0.1)
log = []
for episode in range(3):
    trace.reset()
    loss = 0
    for t in range(3):
        loss = loss + trace(torch.randn(2, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("self.trace.zero_()", "self.trace = torch.zeros_like(self.trace)"),),
    eligibility="""
import torch
from torch import nn


class Trace(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.lin = nn.Linear(n, n)
        self.register_buffer("trace", torch.zeros(2, n))

    def reset(self):
        self.trace.zero_()  # carrier

    def forward(self, x):
        self.trace = 0.5 * self.trace + torch.sigmoid(self.lin(x))
        return self.trace
""",
)

program(
    "state_in_a_trainer",
    "self.state",
    """
class Trainer:
    def __init__(self):
        self.net = nn.GRU(3, 4)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.3)
        self.state = None

    def train_batch(self, x):
        out, self.state = self.net(x, self.state)  # carrier
        loss = out.pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


trainer = Trainer()
log = [trainer.train_batch(torch.randn(4, 2, 3)) for _ in range(3)]
""",
    (("        self.opt.step()\n", "        self.opt.step()\n        self.state = self.state.detach()\n"),),
)

program(
    "weights_evolved",
    "self.weight",
    """
class Evolve(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(3, 3))
        self.rnn = nn.GRUCell(3, 3)
        self.weight = None

    def forward(self, x):
        before = self.first if self.weight is None else self.weight
        self.weight = self.rnn(before, before)  # carrier
        return x @ self.weight


net = Evolve()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
log = []
for epoch in range(3):
    cost = 0
    for t in range(3):
        y_hat = net(torch.randn(5, 3))
        cost = cost + (y_hat - 1).pow(2).mean()
    cost = cost / 3
    cost.backward()
    opt.step()
    opt.zero_grad()
    log.append(cost.item())
""",
    (("    opt.zero_grad()\n", "    opt.zero_grad()\n    net.weight = net.weight.detach()\n"),),
)

program(
    "returned_by_a_helper",
    "hidden",
    """
from model import Model

model = Model()
opt = torch.optim.SGD(model.parameters(), lr=0.2)
hidden = model.initial(2)
log = []
for i in range(3):
    x = torch.randn(2, 5, 3)
    prediction, hidden = model(x, hidden)  # carrier
    loss = (prediction - 0.2).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("    opt.step()\n", "    opt.step()\n    hidden = hidden.detach()\n"),),
    model="""
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(3, 4, batch_first=True)
        self.fc = nn.Linear(4, 1)

    def initial(self, n):
        return torch.zeros(1, n, 4)

    def forward(self, x, hidden):
        out, h = self.rnn(x, hidden)
        return self.fc(out[:, -1]), h
""",
)

program(
    "target_made_once",
    "target",
    """
net = nn.Linear(4, 4)
teacher = nn.Linear(4, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(6, 4)
target = teacher(x).softmax(1)  # carrier
log = []
for i in range(3):
    loss = -(target * net(x).log_softmax(1)).sum(1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("teacher(x).softmax(1)", "teacher(x).softmax(1).detach()"),),
    (("loss.backward()", "loss.backward(retain_graph=True)"),),
)

program(
    "losses_of_one_forward_in_a_loop",
    "outputs",
    """
net, heads = nn.Linear(3, 4), nn.ModuleList(nn.Linear(4, 1) for _ in range(3))
opt = torch.optim.SGD([*net.parameters(), *heads.parameters()], lr=0.1)
log = []
for i in range(2):
    opt.zero_grad()
    outputs = torch.tanh(net(torch.randn(5, 3)))  # carrier
    for head in heads:
        loss = head(outputs).pow(2).mean()
        loss.backward()
        log.append(loss.item())
    opt.step()
""",
    (("loss.backward()", "loss.backward(retain_graph=True)"),),
)

program(
    "state_of_a_helper_module",
    "_state",
    """
import memory

cell = nn.GRUCell(3, 4)
opt = torch.optim.SGD(cell.parameters(), lr=0.2)
log = []
for i in range(3):
    loss = 0
    for t in range(2):
        loss = loss + memory.advance(cell, torch.randn(2, 3)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("    opt.step()\n", "    opt.step()\n    memory._state = memory._state.detach()\n"),),
    memory="""
_state = None


def advance(cell, x):
    global _state
    _state = cell(x) if _state is None else cell(x, _state)  # carrier
    return _state
""",
)
