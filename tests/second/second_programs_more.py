"""More second backwards: containers in containers, resets, queues, baselines, truncation inside a loop."""

from __future__ import annotations

from second_programs import Edits, Program, make

PROGRAMS: list[Program] = []


def program(name: str, carrier: str, main: str, *right: Edits, **modules: str) -> None:
    PROGRAMS.append(make(name, carrier, main, right, modules))


program(
    "conv_lstm_list_of_pairs",
    "self.states[i]",
    """
from layers import Stack

net = Stack()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
log = []
for clip in range(3):
    frames = torch.randn(4, 2, 3)
    loss = 0.0
    for frame in frames:
        loss = loss + (net(frame) - 0.2).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (
        (
            "    opt.step()\n",
            "    opt.step()\n    net.states = [tuple(s.detach() for s in pair) for pair in net.states]\n",
        ),
    ),
    layers="""
import torch
from torch import nn


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList([nn.LSTMCell(3, 4), nn.LSTMCell(4, 4)])
        self.states = [(torch.zeros(2, 4), torch.zeros(2, 4)) for _ in self.cells]

    def forward(self, x):
        for i, cell in enumerate(self.cells):
            self.states[i] = cell(x, self.states[i])  # carrier
            x = self.states[i][0]
        return x
""",
)

program(
    "truncation_inside_a_loop",
    "h",
    """
cell, read = nn.GRUCell(2, 5), nn.Linear(5, 1)
opt = torch.optim.SGD([*cell.parameters(), *read.parameters()], lr=0.1)


def train(xs, every):
    h = torch.zeros(3, 5)
    losses, total = [], 0.0
    for t, x in enumerate(xs, 1):
        h = cell(x, h)  # carrier
        total = total + (read(h) - x.sum(1, keepdim=True)).pow(2).mean()
        if t % every == 0:
            opt.zero_grad()
            total.backward()
            torch.nn.utils.clip_grad_norm_(cell.parameters(), 1.0)
            opt.step()
            losses.append(total.item())
            total = 0.0
    return losses


log = train(torch.randn(9, 3, 2), 3)
""",
    (("            opt.step()\n", "            opt.step()\n            h = h.detach()\n"),),
)

program(
    "baseline_of_reinforce",
    "baseline",
    """
policy = nn.Linear(3, 2)
opt = torch.optim.SGD(policy.parameters(), lr=0.1)
baseline = torch.zeros(())
log = []
for episode in range(4):
    obs = torch.randn(6, 3)
    logp = policy(obs).log_softmax(1)
    value = logp.exp() @ torch.tensor([1.0, -1.0])
    baseline = 0.9 * baseline + 0.1 * value.mean()  # carrier
    loss = -(logp[:, 0] * (value - baseline)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("    opt.step()\n", "    opt.step()\n    baseline = baseline.detach()\n"),),
)

program(
    "queue_of_keys",
    "self.queue",
    """
class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(3, 4)
        self.register_buffer("queue", torch.randn(8, 4))

    def forward(self, x):
        z = nn.functional.normalize(self.enc(x), dim=1)
        logits = z @ self.queue.T
        self.queue = torch.cat([self.queue[z.shape[0] :], z])  # carrier
        return logits.logsumexp(1).mean() - (z * z.roll(1, 0)).sum(1).mean()


net = Contrast()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
log = []
for i in range(4):
    loss = net(torch.randn(2, 3))
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("    opt.step()\n", "    opt.step()\n    net.queue = net.queue.detach()\n"),),
)

program(
    "rows_of_a_bank",
    "bank",
    """
enc = nn.Linear(3, 4)
opt = torch.optim.SGD(enc.parameters(), lr=0.1)
bank = torch.zeros(6, 4)
log = []
for i in range(3):
    idx = torch.arange(2) + 2 * i
    z = enc(torch.randn(2, 3)).tanh()
    bank[idx] = z  # carrier
    loss = (bank.sum(0) - 1).pow(2).mean() + z.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("    opt.step()\n", "    opt.step()\n    bank = bank.detach()\n"),),
)

program(
    "lru_cache",
    "embed",
    """
from functools import lru_cache

table = nn.Parameter(torch.randn(4, 3))
opt = torch.optim.SGD([table], lr=0.1)


@lru_cache(maxsize=None)
def embed(n):
    return table[:n].tanh()  # carrier


log = []
for i in range(3):
    loss = (embed(2).sum(1) - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("@lru_cache(maxsize=None)\n", ""),),
)

program(
    "cache_under_a_key",
    "self.cache[n]",
    """
class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.freq = nn.Parameter(torch.rand(4))
        self.cache = {}

    def table(self, n):
        if n not in self.cache:
            self.cache[n] = torch.outer(torch.arange(1.0, n + 1), self.freq).sin()  # carrier
        return self.cache[n]

    def forward(self, x):
        return x + self.table(x.shape[0])


net = Positions()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
log = []
for i in range(3):
    loss = net(torch.randn(5, 4)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("        if n not in self.cache:\n", "        if True:\n"),),
)

program(
    "style_targets_made_once",
    "targets",
    """
def gram(f):
    return f @ f.T / f.numel()


features = nn.Linear(4, 4)
style = torch.randn(3, 4)
image = nn.Parameter(torch.randn(3, 4))
opt = torch.optim.Adam([image], lr=0.1)
targets = [gram(features(style)), gram(features(style).relu())]  # carrier
log = []
for i in range(3):
    f = features(image)
    loss = (gram(f) - targets[0]).pow(2).sum() + (gram(f.relu()) - targets[1]).pow(2).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("loss.backward()", "loss.backward(retain_graph=True)"),),
)

program(
    "penalty_kept_by_a_module",
    "self.penalty",
    """
class Lasso(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 1)
        self.penalty = None

    def loss(self, x, y):
        if self.penalty is None:
            self.penalty = 0.1 * self.lin.weight.pow(2).sum()  # carrier
        return (self.lin(x) - y).pow(2).mean() + self.penalty


model = Lasso()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(8, 3), torch.randn(8, 1)
log = []
for i in range(3):
    loss = model.loss(x, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("        if self.penalty is None:\n", "        if True:\n"),),
)

program(
    "state_of_an_object",
    "state.hidden",
    """
from dataclasses import dataclass


@dataclass
class State:
    hidden: torch.Tensor
    steps: int = 0


def advance(cell, state, x):
    state.hidden = cell(x, state.hidden)  # carrier
    state.steps += 1
    return state.hidden


def run():
    cell = nn.RNNCell(3, 4)
    opt = torch.optim.SGD(cell.parameters(), lr=0.2)
    state, log = State(torch.zeros(2, 4)), []
    for chunk in torch.randn(3, 4, 2, 3):
        loss = sum(advance(cell, state, x).pow(2).mean() for x in chunk)
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append(loss.item())
    return log


log = run()
""",
    (("        opt.step()\n", "        opt.step()\n        state.hidden = state.hidden.detach()\n"),),
)

program(
    "zeroed_by_fill",
    "self.acc",
    """
class Accumulate(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.acc = torch.zeros(2, 3)

    def start(self):
        self.acc.fill_(0)  # carrier

    def forward(self, x):
        self.acc = self.acc + self.lin(x).sigmoid()
        return self.acc


net = Accumulate()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
log = []
for i in range(3):
    net.start()
    for t in range(3):
        out = net(torch.randn(2, 3))
    loss = out.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("self.acc.fill_(0)", "self.acc = torch.zeros(2, 3)"),),
)

program(
    "reset_by_slice",
    "state",
    """
cell = nn.Linear(5, 3)
opt = torch.optim.SGD(cell.parameters(), lr=0.1)
state = torch.zeros(2, 3)
log = []
for i in range(3):
    state[:] = 0  # carrier
    for t in range(2):
        state = torch.tanh(cell(torch.cat([state, torch.randn(2, 2)], 1)))
    loss = state.pow(2).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("state[:] = 0", "state = torch.zeros(2, 3)"),),
)

program(
    "gan_generated_once",
    "fake",
    """
g, d = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1))
opt_g, opt_d = torch.optim.Adam(g.parameters(), 0.05), torch.optim.Adam(d.parameters(), 0.05)


def d_step(real, fake):
    opt_d.zero_grad()
    loss = nn.functional.softplus(-d(real)).mean() + nn.functional.softplus(d(fake)).mean()
    loss.backward()
    opt_d.step()
    return loss.item()


def g_step(fake):
    opt_g.zero_grad()
    loss = nn.functional.softplus(-d(fake)).mean()
    loss.backward()
    opt_g.step()
    return loss.item()


log = []
for i in range(3):
    fake = g(torch.randn(8, 2))  # carrier
    log.append(d_step(torch.randn(8, 2) + 1, fake))
    log.append(g_step(fake))
""",
    (
        (
            "d(fake)).mean()\n    loss.backward()\n    opt_d",
            "d(fake.detach())).mean()\n    loss.backward()\n    opt_d",
        ),
    ),
)

program(
    "trunk_stepped_between",
    "z",
    """
trunk, pi, v = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 1)
opt_pi = torch.optim.SGD([*trunk.parameters(), *pi.parameters()], lr=0.1)
opt_v = torch.optim.SGD([*trunk.parameters(), *v.parameters()], lr=0.1)
log = []
for i in range(3):
    z = trunk(torch.randn(5, 3)).tanh()  # carrier
    actor = pi(z).log_softmax(1)[:, 0].mean()
    critic = (v(z) - 1).pow(2).mean()
    opt_pi.zero_grad()
    opt_v.zero_grad()
    actor.backward()
    opt_pi.step()
    critic.backward()
    opt_v.step()
    log += [actor.item(), critic.item()]
""",
    (
        (
            "    actor.backward()\n    opt_pi.step()\n    critic.backward()\n",
            "    (actor + critic).backward()\n    opt_pi.step()\n",
        ),
    ),
    (
        (
            "    actor.backward()\n    opt_pi.step()\n    critic.backward()\n",
            "    actor.backward(retain_graph=True)\n    g = [p.grad.clone() for p in trunk.parameters()]\n    critic.backward()\n    opt_pi.step()\n",
        ),
    ),
)

program(
    "hidden_set_from_outside",
    "model.hidden",
    """
from model import Language

model = Language()
opt = torch.optim.SGD(model.parameters(), lr=0.5)
text = torch.randint(0, 5, (13,))
log = []
model.hidden = torch.zeros(1, 1, 6)
for i in range(0, 12, 4):
    scores, model.hidden = model(text[i : i + 4, None], model.hidden)  # carrier
    loss = nn.functional.cross_entropy(scores.view(-1, 5), text[i + 1 : i + 5])
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("    opt.step()\n", "    opt.step()\n    model.hidden = model.hidden.detach()\n"),),
    model="""
from torch import nn


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.rnn, self.out = nn.Embedding(5, 3), nn.GRU(3, 6), nn.Linear(6, 5)

    def forward(self, tokens, hidden):
        features, hidden = self.rnn(self.emb(tokens), hidden)
        return self.out(features), hidden
""",
)

program(
    "total_backward_in_the_loop",
    "loss",
    """
rnn, fc = nn.RNNCell(3, 4), nn.Linear(4, 1)
opt = torch.optim.SGD([*rnn.parameters(), *fc.parameters()], lr=0.1)
log = []
loss = torch.zeros(())
for i in range(3):
    x = torch.randn(2, 3)
    loss = loss + fc(rnn(x)).pow(2).mean()  # carrier
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("    opt.step()\n", "    opt.step()\n    loss = loss.detach()\n"),),
)

program(
    "deque_of_features",
    "self.past.append",
    """
from collections import deque


class Recall(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.past = deque(maxlen=2)

    def forward(self, x):
        f = self.lin(x).relu()
        mixed = f + sum(self.past) if self.past else f
        self.past.append(mixed)  # carrier
        return mixed


net = Recall()
opt = torch.optim.SGD(net.parameters(), lr=0.05)
log = []
for i in range(4):
    loss = (net(torch.randn(4, 3)) - 0.5).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("self.past.append(mixed)", "self.past.append(mixed.detach())"),),
)

program(
    "wrapped_in_a_trainer_class",
    "self.agent.memory",
    """
from agent import Agent


class Runner:
    def __init__(self):
        self.agent = Agent()
        self.opt = torch.optim.RMSprop(self.agent.parameters(), lr=0.01)

    def rollout(self, n):
        total = 0.0
        for _ in range(n):
            out, self.agent.memory = self.agent(torch.randn(2, 3), self.agent.memory)  # carrier
            total = total + (out - 0.3).pow(2).mean()
        return total

    def learn(self):
        history = []
        for _ in range(3):
            loss = self.rollout(4)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            history.append(loss.item())
        return history


log = Runner().learn()
""",
    (
        (
            "            self.opt.step()\n",
            "            self.opt.step()\n            self.agent.memory = self.agent.memory.detach()\n",
        ),
    ),
    agent="""
import torch
from torch import nn


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.out = nn.Linear(7, 4), nn.Linear(4, 1)
        self.memory = torch.zeros(2, 4)

    def forward(self, x, memory):
        memory = torch.tanh(self.mix(torch.cat([x, memory], 1)))
        return self.out(memory), memory
""",
)

program(
    "retain_graph_false_in_all_heads",
    "shared",
    """
body = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
heads = {"a": nn.Linear(6, 1), "b": nn.Linear(6, 1)}
params = [*body.parameters(), *(p for h in heads.values() for p in h.parameters())]
opt = torch.optim.SGD(params, lr=0.1)
log = []
for i in range(3):
    opt.zero_grad()
    shared = body(torch.randn(5, 4))  # carrier
    losses = {k: head(shared).pow(2).mean() for k, head in heads.items()}
    for k in losses:
        losses[k].backward(retain_graph=False)
    opt.step()
    log += [v.item() for v in losses.values()]
""",
    (("retain_graph=False", "retain_graph=True"),),
)

program(
    "window_of_losses",
    "losses.append",
    """
cell = nn.Linear(3, 3)
opt = torch.optim.SGD(cell.parameters(), lr=0.1)
losses, log = [], []
for i in range(4):
    loss = cell(torch.randn(2, 3)).tanh().pow(2).mean()
    losses.append(loss)  # carrier
    smooth = torch.stack(losses[-2:]).mean()
    opt.zero_grad()
    smooth.backward()
    opt.step()
    log.append(loss.item())
""",
    (("smooth.backward()", "(loss / len(losses[-2:])).backward()"),),
)

program(
    "ring_of_rows_written_after_the_loss",
    "self.mem[self.ptr]",
    """
class Ring(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("mem", torch.zeros(4, 3))
        self.ptr = 0

    def forward(self, x):
        z = self.lin(x).mean(0)
        out = (z - self.mem).pow(2).mean()
        self.mem[self.ptr] = z  # carrier
        self.ptr = (self.ptr + 1) % 4
        return out


net = Ring()
opt = torch.optim.SGD(net.parameters(), 0.1)
log = []
for i in range(3):
    loss = net(torch.randn(5, 3))
    opt.zero_grad(); loss.backward(); opt.step()
    log.append(loss.item())
""",
    (("self.mem[self.ptr] = z", "self.mem[self.ptr] = z.detach()"),),
)

program(
    "attr_set_in_train_fn",
    "h",
    """
def train(model, opt, chunks):
    h, log = None, []
    for x in chunks:
        if h is None:
            h = torch.zeros(1, 2, 4)
        y, h = model(x, h)  # carrier
        loss = y.pow(2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        log.append(loss.item())
    return log

model = nn.GRU(3, 4)
log = train(model, torch.optim.SGD(model.parameters(), 0.1), torch.randn(3, 5, 2, 3))
""",
    (("        opt.zero_grad()\n", "        opt.zero_grad()\n        h = h.detach()\n"),),
)
program(
    "nested_dict_of_states",
    "self.state[name]",
    """
class Multi(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleDict({n: nn.GRUCell(3, 3) for n in ("a", "b")})
        self.state = {}

    def forward(self, x):
        for name, cell in self.cells.items():
            self.state[name] = cell(x, self.state.get(name))  # carrier
            x = self.state[name]
        return x

net = Multi()
opt = torch.optim.SGD(net.parameters(), 0.1)
log = []
for i in range(3):
    loss = net(torch.randn(2, 3)).pow(2).mean() + net(torch.randn(2, 3)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (
        (
            "    opt.step()\n",
            "    opt.step()\n    net.state = {k: v.detach() for k, v in net.state.items()}\n",
        ),
    ),
)
program(
    "wgan_gp_reuse",
    "fake",
    """
g, d = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1))
og, od = torch.optim.SGD(g.parameters(), 0.05), torch.optim.SGD(d.parameters(), 0.05)
log = []
for it in range(2):
    z = torch.randn(8, 2)
    fake = g(z)  # carrier
    for k in range(2):
        od.zero_grad()
        d_loss = d(fake).mean() - d(torch.randn(8, 2) + 1).mean()
        d_loss.backward()
        od.step()
        log.append(d_loss.item())
    og.zero_grad()
    g_loss = -d(g(z)).mean()
    g_loss.backward()
    og.step()
    log.append(g_loss.item())
""",
    (("d_loss = d(fake)", "d_loss = d(fake.detach())"),),
    (("d_loss.backward()", "d_loss.backward(retain_graph=True)"),),
)
program(
    "meta_features",
    "self.feats",
    """
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 1)
    def encode(self, x):
        self.feats = self.body(x).tanh()  # carrier
    def loss_a(self):
        return self.a(self.feats).pow(2).mean()
    def loss_b(self):
        return (self.b(self.feats) - 1).pow(2).mean()

net = Two()
opt = torch.optim.SGD(net.parameters(), 0.1)
log = []
for i in range(3):
    opt.zero_grad()
    net.encode(torch.randn(5, 3))
    la = net.loss_a()
    la.backward()
    lb = net.loss_b()
    lb.backward()
    opt.step()
    log += [la.item(), lb.item()]
""",
    (("la.backward()", "la.backward(retain_graph=True)"),),
)
program(
    "ema_loss",
    "self.avg",
    """
class Tracker:
    def __init__(self):
        self.avg = 0.0
    def update(self, loss):
        self.avg = 0.9 * self.avg + 0.1 * loss  # carrier
        return loss / (self.avg + 1)

net, tracker = nn.Linear(3, 1), Tracker()
opt = torch.optim.SGD(net.parameters(), 0.1)
log = []
for i in range(3):
    raw = net(torch.randn(5, 3)).pow(2).mean()
    loss = tracker.update(raw)
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("    opt.step()\n", "    opt.step()\n    tracker.avg = tracker.avg.detach()\n"),),
)
program(
    "generator_state",
    "h",
    """
cell = nn.RNNCell(3, 4)
opt = torch.optim.SGD(cell.parameters(), 0.1)

def stream(xs):
    h = torch.zeros(2, 4)
    for x in xs:
        h = cell(x, h)  # carrier
        yield h

log = []
for h_out in stream(torch.randn(3, 2, 3)):
    loss = h_out.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (("        yield h\n", "        yield h\n        h = h.detach()\n"),),
)
program(
    "adj_made_once",
    "self.adj",
    """
class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Parameter(torch.randn(4, 3))
        self.lin = nn.Linear(3, 2)
        self.adj = torch.softmax(self.emb @ self.emb.T, 1)  # carrier
    def forward(self, x):
        return self.lin(self.adj @ x)

net = Graph()
opt = torch.optim.SGD(net.parameters(), 0.1)
log = []
for i in range(3):
    loss = net(torch.randn(4, 3)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
""",
    (
        ("        self.adj = torch.softmax(self.emb @ self.emb.T, 1)  # carrier\n", ""),
        ("self.lin(self.adj @ x)", "self.lin(torch.softmax(self.emb @ self.emb.T, 1) @ x)"),
    ),
)
program(
    "two_functions_train",
    "state",
    """
def init(n):
    return torch.zeros(n, 4), torch.zeros(n, 4)

def step(cell, x, state):
    h, c = cell(x, state)
    return h, (h, c)

cell, head = nn.LSTMCell(3, 4), nn.Linear(4, 1)
opt = torch.optim.Adam([*cell.parameters(), *head.parameters()], 0.05)
state = init(2)
log = []
for i in range(3):
    total = 0.0
    for t in range(3):
        out, state = step(cell, torch.randn(2, 3), state)  # carrier
        total = total + head(out).pow(2).mean()
    opt.zero_grad()
    total.backward()
    opt.step()
    log.append(total.item())
""",
    (("    opt.step()\n", "    opt.step()\n    state = tuple(s.detach() for s in state)\n"),),
)
