"""Programs as people write them: broken ones with the lines to be told, and safe ones that look dangerous.

The tests run each under PyTorch as well, so that no label is only believed.
"""

from __future__ import annotations

# name -> (lines of which one must be told; none: a safe program, silent: PyTorch says nothing, source)
PROGRAMS: dict[str, tuple[tuple[int, ...], bool, str]] = {
    "gan_no_detach": (
        (19,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

G = nn.Linear(4, 8)
D = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
og = torch.optim.Adam(G.parameters())
od = torch.optim.Adam(D.parameters())
bce = nn.BCEWithLogitsLoss()
for i in range(10):
    z = torch.randn(5, 4)
    fake = G(z)
    ld = bce(D(torch.randn(5, 8)), torch.ones(5, 1)) + bce(D(fake), torch.zeros(5, 1))
    od.zero_grad()
    ld.backward()
    od.step()
    lg = bce(D(fake), torch.ones(5, 1))
    og.zero_grad()
    lg.backward()
    og.step()
""",
    ),
    "gan_step_between": (
        (18,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

G = nn.Linear(4, 8)
D = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
og = torch.optim.Adam(G.parameters())
od = torch.optim.Adam(D.parameters())
bce = nn.BCEWithLogitsLoss()
for i in range(10):
    z = torch.randn(5, 4)
    fake = G(z)
    pred = D(fake)
    lg = bce(pred, torch.ones(5, 1))
    ld = bce(D(fake.detach()), torch.zeros(5, 1))
    od.zero_grad()
    ld.backward()
    od.step()
    og.zero_grad()
    lg.backward()
    og.step()
""",
    ),
    "gan_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Gen(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Tanh())

    def forward(self, z):
        return self.net(z)


G = Gen()
D = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 1), nn.Sigmoid())
og = torch.optim.Adam(G.parameters())
od = torch.optim.Adam(D.parameters())
bce = nn.BCELoss()
for epoch in range(2):
    for real in [torch.randn(5, 8)] * 3:
        z = torch.randn(5, 4)
        fake = G(z)
        od.zero_grad()
        lr = bce(D(real), torch.ones(5, 1))
        lf = bce(D(fake.detach()), torch.zeros(5, 1))
        (lr + lf).backward()
        od.step()
        og.zero_grad()
        lg = bce(D(fake), torch.ones(5, 1))
        lg.backward()
        og.step()
""",
    ),
    "rnn_hidden": (
        (24,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 4)
        self.fc = nn.Linear(4, 1)

    def forward(self, x, h):
        o, h = self.rnn(x, h)
        return self.fc(o), h


m = M()
opt = torch.optim.SGD(m.parameters(), lr=0.1)
h = None
for x in torch.randn(5, 2, 1, 3):
    out, h = m(x, h)
    loss = out.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    "rnn_hidden_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 4)
        self.fc = nn.Linear(4, 1)

    def forward(self, x, h):
        o, h = self.rnn(x, h)
        return self.fc(o), h


def detach(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(detach(v) for v in h)


m = M()
opt = torch.optim.SGD(m.parameters(), lr=0.1)
h = None
for x in torch.randn(5, 2, 1, 3):
    if h is not None:
        h = detach(h)
    out, h = m(x, h)
    loss = out.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    "hidden_attr": (
        (25,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.GRUCell(3, 4)
        self.h = torch.zeros(1, 4)
        self.o = nn.Linear(4, 1)

    def forward(self, x):
        self.h = self.c(x, self.h)
        return self.o(self.h)


m = Cell()
opt = torch.optim.SGD(m.parameters(), lr=0.1)
data = [(torch.randn(1, 3), torch.randn(1, 1)) for _ in range(5)]
for x, y in data:
    opt.zero_grad()
    p = m(x)
    loss = F.mse_loss(p, y)
    loss.backward()
    opt.step()
""",
    ),
    "inplace_relu_residual": (
        (17,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class B(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(3, 3, 3, padding=1)
        self.c2 = nn.Conv2d(3, 3, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.bn = nn.BatchNorm2d(3)

    def forward(self, x):
        y = self.c1(x)
        z = self.c2(y)
        y = self.act(y)
        return z + y


m = B()
out = m(torch.randn(1, 3, 4, 4))
out.mean().backward()
""",
    ),
    "resnet_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class B(nn.Module):
    def __init__(self, c, down=None):
        super().__init__()
        self.c1 = nn.Conv2d(c, c, 3, padding=1)
        self.b1 = nn.BatchNorm2d(c)
        self.relu = nn.ReLU(inplace=True)
        self.c2 = nn.Conv2d(c, c, 3, padding=1)
        self.b2 = nn.BatchNorm2d(c)
        self.down = down

    def forward(self, x):
        identity = x
        out = self.relu(self.b1(self.c1(x)))
        out = self.b2(self.c2(out))
        if self.down is not None:
            identity = self.down(x)
        out += identity
        out = self.relu(out)
        return out


m = nn.Sequential(
    nn.Conv2d(3, 4, 3),
    nn.BatchNorm2d(4),
    nn.ReLU(inplace=True),
    nn.MaxPool2d(2),
    B(4),
    B(4),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(4, 2),
)
opt = torch.optim.SGD(m.parameters(), lr=0.1)
for i in range(3):
    loss = F.cross_entropy(m(torch.randn(2, 3, 12, 12)), torch.tensor([0, 1]))
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    "softmax_mask": (
        (14,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class A(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(4, 4)
        self.k = nn.Linear(4, 4)

    def forward(self, x, mask):
        a = torch.softmax(self.q(x) @ self.k(x).transpose(-1, -2), -1)
        a[mask] = 0
        return a @ x


m = A()
m(torch.randn(1, 3, 4), torch.zeros(1, 3, 3).bool()).sum().backward()
""",
    ),
    "buffer_loop": (
        (11,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

w = nn.Linear(3, 3)
x = torch.randn(5, 3)
h = torch.zeros(6, 3)
for t in range(5):
    a = w(h[t])
    b = x[t] * a
    h[t + 1] = torch.tanh(a) * b  # w keeps h[t]
h.sum().backward()
""",
    ),
    "sac": (
        (19,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

actor = nn.Linear(3, 2)
q = nn.Linear(5, 1)
oa = torch.optim.Adam(actor.parameters())
oq = torch.optim.Adam(q.parameters())


def update(s, a, r):
    pi = torch.tanh(actor(s))
    qv = q(torch.cat([s, a], 1))
    qpi = q(torch.cat([s, pi], 1))
    ql = F.mse_loss(qv, r)
    al = -qpi.mean()
    oq.zero_grad()
    ql.backward()
    oq.step()
    oa.zero_grad()
    al.backward()
    oa.step()


update(torch.randn(4, 3), torch.randn(4, 2), torch.randn(4, 1))
""",
    ),
    "sac_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

actor = nn.Linear(3, 2)
q = nn.Linear(5, 1)
qt = nn.Linear(5, 1)
qt.load_state_dict(q.state_dict())
oa = torch.optim.Adam(actor.parameters())
oq = torch.optim.Adam(q.parameters())


def update(s, a, r):
    with torch.no_grad():
        target = r + 0.9 * qt(torch.cat([s, torch.tanh(actor(s))], 1))
    ql = F.mse_loss(q(torch.cat([s, a], 1)), target)
    oq.zero_grad()
    ql.backward()
    oq.step()
    pi = torch.tanh(actor(s))
    al = -q(torch.cat([s, pi], 1)).mean()
    oa.zero_grad()
    al.backward()
    oa.step()
    with torch.no_grad():
        for p, t in zip(q.parameters(), qt.parameters()):
            t.data.mul_(0.9)
            t.data.add_(0.1 * p.data)


for _ in range(3):
    update(torch.randn(4, 3), torch.randn(4, 2), torch.randn(4, 1))
""",
    ),
    "twice": (
        (8,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

x = torch.randn(3, requires_grad=True)
y = (x**2).sum()
y.backward()
y.backward()
""",
    ),
    "numpy_alias": (
        (11,),
        True,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

import numpy as np

x = torch.randn(3, requires_grad=True)
w = torch.ones(3)
y = (x * w).sum()
a = w.numpy()
a[0] = 100
y.backward()
""",
    ),
    "accum_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

m = nn.Linear(3, 1)
opt = torch.optim.SGD(m.parameters(), lr=0.1)
total = 0
for i in range(8):
    loss = m(torch.randn(2, 3)).mean() / 4
    loss.backward()
    total += loss.item()
    if (i + 1) % 4 == 0:
        opt.step()
        opt.zero_grad()
""",
    ),
    "vae_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Linear(4, 4)
        self.d = nn.Linear(2, 4)

    def reparam(self, mu, lv):
        std = torch.exp(0.5 * lv)
        eps = torch.randn_like(std)
        return eps.mul(std).add_(mu)

    def forward(self, x):
        mu, lv = self.e(x).chunk(2, -1)
        return torch.sigmoid(self.d(self.reparam(mu, lv))), mu, lv


m = VAE()
opt = torch.optim.Adam(m.parameters())
for i in range(3):
    r, mu, lv = m(torch.rand(2, 4))
    x = torch.rand(2, 4)
    kl = -0.5 * torch.sum(1 + lv - mu.pow(2) - lv.exp())
    loss = F.binary_cross_entropy(r, x) + kl
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    "vae_bad": (
        (14,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Linear(4, 4)
        self.d = nn.Linear(2, 4)

    def reparam(self, mu, lv):
        std = lv.mul(0.5).exp_()
        std += 1e-6
        return torch.randn_like(std).mul(std).add_(mu)

    def forward(self, x):
        mu, lv = self.e(x).chunk(2, -1)
        return torch.sigmoid(self.d(self.reparam(mu, lv))), mu, lv


m = VAE()
opt = torch.optim.Adam(m.parameters())
r, mu, lv = m(torch.rand(2, 4))
loss = F.binary_cross_entropy(r, torch.rand(2, 4))
loss.backward()
""",
    ),
    "dropout_inplace_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class T(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)
        self.do = nn.Dropout(0.1, inplace=True)
        self.n = nn.LayerNorm(3)

    def forward(self, x):
        return self.n(x + self.do(self.l(x)))


m = T()
m(torch.randn(2, 3)).sum().backward()
""",
    ),
    "clone_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

m = nn.Linear(3, 3)
x = torch.randn(2, 3)
y = torch.sigmoid(m(x))
z = y.clone()
z[:, 0] = 0
z *= 2
z.sum().backward()
""",
    ),
    "param_inplace_forward": (
        (13,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class P(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3))

    def forward(self, x):

        self.w.clamp_(0, 1)
        return x * self.w


m = P()
m(torch.randn(3)).sum().backward()
""",
    ),
    "unbind": (
        (8,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

m = nn.Linear(3, 4)
y = m(torch.randn(2, 3))
a, b = y.unbind(0)
a += 1
(a * b).sum().backward()
""",
    ),
    "for_rows": (
        (8,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

m = nn.Linear(3, 4)
y = m(torch.randn(2, 3))
for row in y:
    row.mul_(2)
y.sum().backward()
""",
    ),
    "trainer_class": (
        (23,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Trainer:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        self.head = nn.Linear(2, 1)
        self.opt1 = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.opt2 = torch.optim.SGD(self.head.parameters(), lr=0.1)

    def step(self, x, y):
        f = self.net(x)
        o = self.head(f)
        l1 = f.pow(2).mean()
        l2 = F.mse_loss(o, y)
        self.opt1.zero_grad()
        l1.backward(retain_graph=True)

        # update the features first

        self.opt1.step()
        self.opt2.zero_grad()
        l2.backward()
        self.opt2.step()


t = Trainer()
for i in range(2):
    t.step(torch.randn(2, 3), torch.randn(2, 1))
""",
    ),
    "sigmoid_mul_inplace": (
        (7,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

x = torch.randn(3, requires_grad=True)
y = torch.sigmoid(x)
y *= 2
y.sum().backward()
""",
    ),
    "mul_then_inplace": (
        (9,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

a = torch.randn(3, requires_grad=True)
b = torch.randn(3, requires_grad=True)
c = a * 1
d = c * b
c.add_(1)
d.sum().backward()
""",
    ),
    "add_inplace_fine": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

a = torch.randn(3, requires_grad=True)
c = a + 1
c.add_(1)
c *= 2
c[0] = 0
c.sum().backward()
""",
    ),
    "densenet": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Dense(nn.Module):
    def __init__(s):
        super().__init__()
        s.convs = nn.ModuleList([nn.Conv2d(2 * (i + 1), 2, 3, padding=1) for i in range(3)])
        s.relu = nn.ReLU(inplace=True)

    def forward(s, x):
        feats = [x]
        for c in s.convs:
            out = s.relu(c(torch.cat(feats, 1)))
            feats.append(out)
        return torch.cat(feats, 1)


m = Dense()
m(torch.randn(1, 2, 4, 4)).sum().backward()
""",
    ),
    "preact_inplace_bad": (
        (16,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Pre(nn.Module):
    def __init__(s):
        super().__init__()
        s.bn = nn.BatchNorm2d(2)
        s.c = nn.Conv2d(2, 2, 3, padding=1)
        s.act = nn.ReLU(inplace=True)
        s.c0 = nn.Conv2d(2, 2, 1)

    def forward(s, x):
        x = torch.tanh(s.c0(x))
        y = s.c(s.act(x))
        return x + y


Pre()(torch.randn(1, 2, 4, 4)).sum().backward()
""",
    ),
    "unet_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class UNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.d1 = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        )
        s.d2 = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        )
        s.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        s.pool = nn.MaxPool2d(2)
        s.out = nn.Conv2d(8, 1, 1)

    def forward(s, x):
        a = s.d1(x)
        b = s.d2(s.pool(a))
        u = s.up(b)
        return s.out(torch.cat([a, u], 1))


net = UNet()
opt = torch.optim.Adam(net.parameters())
for e in range(2):
    l = F.binary_cross_entropy_with_logits(net(torch.randn(1, 1, 8, 8)), torch.rand(1, 1, 8, 8))
    opt.zero_grad(set_to_none=True)
    l.backward()
    opt.step()
""",
    ),
    "actor_critic_list": (
        (19,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

pol = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
opt = torch.optim.Adam(pol.parameters())
logps = []
rewards = []
for ep in range(3):
    s = torch.randn(4)
    for t in range(4):
        d = torch.distributions.Categorical(logits=pol(s))
        a = d.sample()
        logps.append(d.log_prob(a))
        rewards.append(1.0)
        s = torch.randn(4)
    loss = -(torch.stack(logps) * torch.tensor(rewards)).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    "actor_critic_list_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

pol = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
opt = torch.optim.Adam(pol.parameters())
for ep in range(3):
    logps = []
    rewards = []
    s = torch.randn(4)
    for t in range(4):
        d = torch.distributions.Categorical(logits=pol(s))
        a = d.sample()
        logps.append(d.log_prob(a))
        rewards.append(1.0)
        s = torch.randn(4)
    loss = -(torch.stack(logps) * torch.tensor(rewards)).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    "actor_critic_list_del_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Policy(nn.Module):
    def __init__(s):
        super().__init__()
        s.l = nn.Linear(4, 2)
        s.saved = []
        s.rewards = []

    def forward(s, x):
        return F.softmax(s.l(x), dim=-1)


pol = Policy()
opt = torch.optim.Adam(pol.parameters())


def select(s):
    d = torch.distributions.Categorical(pol(s))
    a = d.sample()
    pol.saved.append(d.log_prob(a))
    return a.item()


def finish():
    loss = []
    for lp, r in zip(pol.saved, pol.rewards):
        loss.append(-lp * r)
    opt.zero_grad()
    l = torch.stack(loss).sum()
    l.backward()
    opt.step()
    del pol.rewards[:]
    del pol.saved[:]


for ep in range(3):
    for t in range(3):
        select(torch.randn(4))
        pol.rewards.append(1.0)
    finish()
""",
    ),
    "loss_accum_bad": (
        (12,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

m = nn.Linear(3, 1)
opt = torch.optim.SGD(m.parameters(), lr=0.1)
total = 0
for i in range(3):
    l = (m(torch.randn(2, 3)) ** 2).mean()
    total = total + l
    opt.zero_grad()
    total.backward()
    opt.step()
""",
    ),
    "loss_accum_item_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

m = nn.Linear(3, 1)
opt = torch.optim.SGD(m.parameters(), lr=0.1)
total = 0
hist = []
for i in range(3):
    l = (m(torch.randn(2, 3)) ** 2).mean()
    total += l.item()
    hist.append(l.detach())
    opt.zero_grad()
    l.backward()
    opt.step()
""",
    ),
    "weights_sharing_two_losses_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

e = nn.Linear(3, 4)
a = nn.Linear(4, 1)
b = nn.Linear(4, 1)
opt = torch.optim.SGD([*e.parameters(), *a.parameters(), *b.parameters()], lr=0.1)
for i in range(2):
    h = torch.relu(e(torch.randn(2, 3)))
    la = a(h).mean()
    lb = (b(h) ** 2).mean()
    opt.zero_grad()
    la.backward(retain_graph=True)
    lb.backward()
    opt.step()
""",
    ),
    "two_losses_no_retain": (
        (12,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

e = nn.Linear(3, 4)
a = nn.Linear(4, 1)
b = nn.Linear(4, 1)
h = torch.relu(e(torch.randn(2, 3)))
la = a(h).mean()
lb = (b(h) ** 2).mean()
la.backward()
lb.backward()
""",
    ),
    "masked_fill_scores_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

q = nn.Linear(4, 4)
k = nn.Linear(4, 4)
x = torch.randn(1, 3, 4)
mask = torch.tensor([[0, 0, 1]]).bool()
s = q(x) @ k(x).transpose(1, 2) / 2.0
s.masked_fill_(mask.unsqueeze(1), float("-inf"))
(s.softmax(-1) @ x).sum().backward()
""",
    ),
    "embed_inplace": (
        (10,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

emb = nn.Embedding(5, 3)
ids = torch.tensor([0, 1])
w = nn.Linear(3, 3)
h = emb(ids)
o = w(h)
h[:, 0] = 0
(o + h).sum().backward()
""",
    ),
    "ema_after_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F
import copy

m = nn.Linear(3, 3)
t = copy.deepcopy(m)
opt = torch.optim.SGD(m.parameters(), lr=0.1)
for p_ in t.parameters():
    p_.requires_grad = False
for i in range(3):
    x = torch.randn(2, 3)
    l = F.mse_loss(m(x), t(x))
    opt.zero_grad()
    l.backward()
    opt.step()
    with torch.no_grad():
        for a, b in zip(m.parameters(), t.parameters()):
            b.mul_(0.9).add_(a, alpha=0.1)
""",
    ),
    "grad_clip_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

m = nn.Linear(3, 3)
opt = torch.optim.SGD(m.parameters(), lr=0.1)
sched = torch.optim.lr_scheduler.StepLR(opt, 1)
for i in range(3):
    opt.zero_grad()
    l = m(torch.randn(2, 3)).pow(2).sum()
    l.backward()
    torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    for p_ in m.parameters():
        p_.grad.data.clamp_(-1, 1)
    opt.step()
    sched.step()
""",
    ),
    "wgan_gp_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

D = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
opt = torch.optim.Adam(D.parameters())


def gp(real, fake):
    a = torch.rand(real.size(0), 1)
    x = (a * real + (1 - a) * fake).requires_grad_(True)
    o = D(x)
    g = torch.autograd.grad(o, x, torch.ones_like(o), create_graph=True, retain_graph=True)[0]
    return ((g.norm(2, dim=1) - 1) ** 2).mean()


for i in range(3):
    r = torch.randn(4, 3)
    f = torch.randn(4, 3)
    l = D(f).mean() - D(r).mean() + 10 * gp(r, f)
    opt.zero_grad()
    l.backward()
    opt.step()
""",
    ),
    "adversarial_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

m = nn.Linear(3, 2)
x = torch.randn(4, 3)
y = torch.tensor([0, 1, 0, 1])
d = torch.zeros_like(x, requires_grad=True)
for i in range(3):
    l = F.cross_entropy(m(x + d), y)
    l.backward()
    d.data = (d + 0.1 * d.grad.sign()).clamp(-1, 1).detach()
    d.grad.zero_()
""",
    ),
    "adversarial_bad": (
        (10,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

m = nn.Linear(3, 2)
x = torch.randn(4, 3, requires_grad=True)
y = torch.tensor([0, 1, 0, 1])
l = F.cross_entropy(m(x), y)
l.backward()
x += 0.1 * x.grad.sign()
""",
    ),
    "lstm_manual_bad": (
        (18,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class L(nn.Module):
    def __init__(s):
        super().__init__()
        s.i = nn.Linear(3, 4)
        s.h = nn.Linear(4, 4)

    def forward(s, x):
        h = torch.zeros(2, 4)
        outs = torch.zeros(5, 2, 4)
        for t in range(5):
            h = torch.tanh(s.i(x[t]) + s.h(h))
            outs[t] = h
            h *= 0.9
        return outs


L()(torch.randn(5, 2, 3)).sum().backward()
""",
    ),
    "lstm_manual_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class L(nn.Module):
    def __init__(s):
        super().__init__()
        s.i = nn.Linear(3, 4)
        s.h = nn.Linear(4, 4)

    def forward(s, x):
        h = torch.zeros(2, 4)
        outs = torch.zeros(5, 2, 4)
        for t in range(5):
            h = torch.tanh(s.i(x[t]) + s.h(h))
            outs[t] = h
        return outs


L()(torch.randn(5, 2, 3)).sum().backward()
""",
    ),
    "ode_euler_bad": (
        (9,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

f = nn.Linear(2, 2)
y = torch.zeros(10, 2)
y[0] = torch.randn(2)
for i in range(9):
    y[i + 1] = y[i] + 0.1 * f(y[i])
y.sum().backward()
""",
    ),
    "ode_euler_list_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

f = nn.Linear(2, 2)
ys = [torch.randn(2)]
for i in range(9):
    ys.append(ys[-1] + 0.1 * f(ys[-1]))
torch.stack(ys).sum().backward()
""",
    ),
    "state_buffer_module_bad": (
        (14,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Mem(nn.Module):
    def __init__(s):
        super().__init__()
        s.register_buffer("mem", torch.zeros(4, 3))
        s.w = nn.Linear(3, 3)

    def forward(s, x, i):
        r = s.w(s.mem).sum(0)
        s.mem[i] = x.detach()
        return r + s.w(x)


m = Mem()
o = m(torch.randn(3), 0)
o2 = m(torch.randn(3), 1)
(o + o2).sum().backward()
""",
    ),
    "queue_moco_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Moco(nn.Module):
    def __init__(s):
        super().__init__()
        s.q = nn.Linear(3, 4)
        s.k = nn.Linear(3, 4)
        s.register_buffer("queue", torch.randn(4, 8))
        s.ptr = 0
        for a, b in zip(s.q.parameters(), s.k.parameters()):
            b.data.copy_(a.data)
            b.requires_grad = False

    @torch.no_grad()
    def enqueue(s, keys):
        s.queue[:, :2] = keys.t()

    def forward(s, x):
        q = s.q(x)
        with torch.no_grad():
            for a, b in zip(s.q.parameters(), s.k.parameters()):
                b.data = b.data * 0.9 + a.data * 0.1
            k = s.k(x)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ s.queue.clone().detach()], 1)
        s.enqueue(k)
        return logits


m = Moco()
opt = torch.optim.SGD(m.q.parameters(), lr=0.1)
for i in range(3):
    l = F.cross_entropy(m(torch.randn(2, 3)), torch.zeros(2).long())
    opt.zero_grad()
    l.backward()
    opt.step()
""",
    ),
    "queue_moco_bad": (
        (14,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class Moco(nn.Module):
    def __init__(s):
        super().__init__()
        s.q = nn.Linear(3, 4)
        s.register_buffer("queue", torch.randn(4, 8))

    @torch.no_grad()
    def enqueue(s, keys):
        s.queue[:, :2] = keys.t()

    def forward(s, x):
        q = s.q(x)
        with torch.no_grad():
            k = s.q(x)
        logits = q @ s.queue
        s.enqueue(k)
        return logits


m = Moco()
opt = torch.optim.SGD(m.q.parameters(), lr=0.1)
l = F.cross_entropy(m(torch.randn(2, 3)), torch.zeros(2).long())
opt.zero_grad()
l.backward()
opt.step()
""",
    ),
    "mixup_target_bad": (
        (9,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

m = nn.Linear(3, 2)
x = torch.randn(4, 3)
y = torch.randn(4, 2)
l = F.mse_loss(m(x), y)
y *= 0
l.backward()
""",
    ),
    "input_scale_after_linear_bad": (
        (8,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

m = nn.Linear(3, 2)
x = torch.randn(4, 3)
o = m(x)
x /= 2
o.sum().backward()
""",
    ),
    "norm_inplace_bad": (
        (8,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

m = nn.Linear(3, 2)
o = m(torch.randn(4, 3))
n = o.norm(dim=1, keepdim=True)
o /= n
o.sum().backward()
""",
    ),
    "partial_closure_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F
from functools import partial

m = nn.Linear(3, 1)
opt = torch.optim.LBFGS(m.parameters(), max_iter=3)
x = torch.randn(4, 3)


def closure(x):
    opt.zero_grad()
    l = m(x).pow(2).sum()
    l.backward()
    return l


opt.step(partial(closure, x))
""",
    ),
    "yield_batches_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F


def batches(n):
    for i in range(n):
        yield torch.randn(2, 3), torch.randn(2, 1)


class M(nn.Module):
    def __init__(s, act=nn.ReLU):
        super().__init__()
        s.net = nn.Sequential(nn.Linear(3, 4), act(inplace=True), nn.Linear(4, 1))

    def forward(s, x):
        return s.net(x)


def train(m, opt):
    for x, y in batches(3):
        opt.zero_grad()
        l = F.mse_loss(m(x), y)
        l.backward()
        opt.step()


if __name__ == "__main__":
    m = M()
    train(m, torch.optim.Adam(m.parameters(), lr=1e-3))
""",
    ),
    "td_lambda_trace": (
        (14,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

v = nn.Linear(3, 1)
opt = torch.optim.SGD(v.parameters(), lr=0.1)
s = torch.randn(3)
val = v(s)
for t in range(3):
    s2 = torch.randn(3)
    val2 = v(s2)
    l = (1 + 0.9 * val2 - val).pow(2).sum()
    opt.zero_grad()
    l.backward()
    opt.step()
    val = val2
""",
    ),
    "index_add_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

m = nn.Linear(3, 3)
x = torch.randn(4, 3)
out = torch.zeros(2, 3)
out.index_add_(0, torch.tensor([0, 1, 0, 1]), m(x))
out.sum().backward()
""",
    ),
    "clamp_inplace_out_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

m = nn.Linear(3, 3)
o = m(torch.randn(2, 3))
o.clamp_(min=0)
o.sum().backward()
""",
    ),
    "clamp_twice_bad": (
        (8,),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

m = nn.Linear(3, 3)
o = m(torch.randn(2, 3))
a = o.abs()
o.clamp_(min=0)
(a + o).sum().backward()
""",
    ),
    "data_parallel_ok": (
        (),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

m = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.GELU(), nn.Dropout(0.1))
opt = torch.optim.AdamW(m.parameters())
best = None
for i in range(2):
    m.train()
    l = m(torch.randn(2, 3)).sum()
    opt.zero_grad()
    l.backward()
    opt.step()
    m.eval()
    with torch.no_grad():
        o = m(torch.randn(2, 3))
        o[o < 0] = 0
        o += 1
    if best is None or l.item() < best:
        best = l.item()
        sd = {k: v.clone() for k, v in m.state_dict().items()}
m.load_state_dict(sd)
""",
    ),
    "trainer_dict": (
        (25,),
        False,
        """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn import Linear, Parameter


class Agent:
    def __init__(self, cfg):
        self.nets = {
            "actor": nn.Sequential(Linear(3, 8), nn.ReLU(), Linear(8, 2)),
            "critic": Linear(3, 1),
        }
        self.opts = {k: optim.Adam(n.parameters(), lr=cfg["lr"]) for k, n in self.nets.items()}

    def learn(self, s, r):
        v = self.nets["critic"](s)
        logits = self.nets["actor"](s)
        adv = r - v
        closs = adv.pow(2).mean()
        aloss = -(F.log_softmax(logits, -1)[:, 0:1] * adv).mean()
        self.opts["critic"].zero_grad()
        closs.backward()
        self.opts["critic"].step()
        self.opts["actor"].zero_grad()
        aloss.backward()
        self.opts["actor"].step()


a = Agent({"lr": 1e-3})
for _ in range(2):
    a.learn(torch.randn(4, 3), torch.randn(4, 1))
""",
    ),
    "trainer_dict_ok": (
        (),
        False,
        """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn import Linear, Parameter


class Agent:
    def __init__(self, cfg):
        self.nets = {
            "actor": nn.Sequential(Linear(3, 8), nn.ReLU(), Linear(8, 2)),
            "critic": Linear(3, 1),
        }
        self.opts = {k: optim.Adam(n.parameters(), lr=cfg["lr"]) for k, n in self.nets.items()}

    def learn(self, s, r):
        v = self.nets["critic"](s)
        logits = self.nets["actor"](s)
        adv = r - v
        closs = adv.pow(2).mean()
        aloss = -(F.log_softmax(logits, -1)[:, 0:1] * adv.detach()).mean()
        self.opts["critic"].zero_grad()
        closs.backward()
        self.opts["critic"].step()
        self.opts["actor"].zero_grad()
        aloss.backward()
        self.opts["actor"].step()


a = Agent({"lr": 1e-3})
for _ in range(2):
    a.learn(torch.randn(4, 3), torch.randn(4, 1))
""",
    ),
    "inherit_base": (
        (21,),
        False,
        """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn import Linear, Parameter


class Base(nn.Module):
    act = "sigmoid"

    def activate(self, x):
        return getattr(torch, self.act)(x)


class Child(Base):
    def __init__(self):
        super(Child, self).__init__()
        self.fc = Linear(3, 3)

    def forward(self, x):
        h = self.activate(self.fc(x))
        h.sub_(h.mean())
        return h


out = Child()(torch.randn(2, 3))
out.sum().backward()
""",
    ),
    "act_dict": (
        (19,),
        False,
        """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn import Linear, Parameter

ACT = {"relu": nn.ReLU(inplace=True), "tanh": nn.Tanh()}


class N(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.a = Linear(3, 3)
        self.act = ACT[act]
        self.b = Linear(3, 3)

    def forward(self, x):
        h = self.a(x)
        y = self.b(h)
        return self.act(h) + y


N("relu")(torch.randn(2, 3)).sum().backward()
""",
    ),
    "act_dict_ok": (
        (),
        False,
        """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn import Linear, Parameter

ACT = {"relu": nn.ReLU(inplace=True), "tanh": nn.Tanh()}


class N(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.a = Linear(3, 3)
        self.act = ACT[act]
        self.b = Linear(3, 3)

    def forward(self, x):
        h = self.a(x)
        y = self.b(h)
        return self.act(h) + y


N("tanh")(torch.randn(2, 3)).sum().backward()
""",
    ),
    "forward_hook_write": (
        (10,),
        False,
        """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn import Linear, Parameter

m = nn.Sequential(Linear(3, 3), nn.Sigmoid(), Linear(3, 1))


def hook(mod, inp, out):
    out.mul_(2)


m[1].register_forward_hook(hook)
m(torch.randn(2, 3)).sum().backward()
""",
    ),
    "weight_norm_manual": (
        (),
        False,
        """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn import Linear, Parameter


class WN(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = Parameter(torch.randn(3, 3))

    def forward(self, x):
        with torch.no_grad():
            self.w.div_(self.w.norm(dim=1, keepdim=True))
        return x @ self.w


m = WN()
x = torch.randn(2, 3)
y = m(torch.tanh(m(x)))
y.sum().backward()
""",
    ),
    "weight_norm_once_ok": (
        (),
        False,
        """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn import Linear, Parameter


class WN(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = Parameter(torch.randn(3, 3))

    def forward(self, x):
        with torch.no_grad():
            self.w.div_(self.w.norm(dim=1, keepdim=True))
        return x @ self.w


m = WN()
opt = optim.SGD(m.parameters(), lr=0.1)
for _ in range(3):
    y = m(torch.randn(2, 3))
    opt.zero_grad()
    y.sum().backward()
    opt.step()
""",
    ),
    "positional_buffer_ok": (
        (),
        False,
        """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn import Linear, Parameter


class PE(nn.Module):
    def __init__(self, d=4, n=10):
        super().__init__()
        pe = torch.zeros(n, d)
        pos = torch.arange(n).unsqueeze(1).float()
        pe[:, 0::2] = torch.sin(pos)
        pe[:, 1::2] = torch.cos(pos)
        self.register_buffer("pe", pe)
        self.l = Linear(d, d)

    def forward(self, x):
        x = self.l(x)
        x += self.pe[: x.size(0)]
        return x


PE()(torch.randn(5, 4)).sum().backward()
""",
    ),
    "swap_rows": (
        (9,),
        False,
        """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn import Linear, Parameter

l = Linear(3, 3)
x = l(torch.randn(4, 3))
y = x * x
x[0], x[1] = x[1].clone(), x[0].clone()
(y + x).sum().backward()
""",
    ),
    "conditional_inplace": (
        (16,),
        False,
        """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn import Linear, Parameter


class C(nn.Module):
    def __init__(self, residual=True):
        super().__init__()
        self.f = nn.Sequential(Linear(3, 3), nn.Sigmoid())
        self.residual = residual

    def forward(self, x):
        out = self.f(x)
        if self.residual:
            out += x
        return out


C()(torch.randn(2, 3)).sum().backward()
""",
    ),
    "conditional_off_ok": (
        (),
        False,
        """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn import Linear, Parameter


class C(nn.Module):
    def __init__(self, residual=False):
        super().__init__()
        self.f = nn.Sequential(Linear(3, 3), nn.Sigmoid())
        self.residual = residual

    def forward(self, x):
        out = self.f(x)
        if self.residual:
            out += x
        return out


C()(torch.randn(2, 3)).sum().backward()
""",
    ),
    "static_graph_outside": (
        (13,),
        False,
        """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn import Linear, Parameter

l = Linear(3, 3)
emb = torch.softmax(l(torch.randn(3, 3)), -1)
head = Linear(3, 1)
opt = optim.Adam([*l.parameters(), *head.parameters()])
for epoch in range(5):
    loss = head(emb).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    ),
    "inner_fn_closure_ok": (
        (),
        False,
        """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn import Linear, Parameter


def make(dim):
    l = Linear(dim, dim)

    def f(x, *, scale=1.0):
        y = l(x)
        y *= scale
        y.relu_()
        return y

    return f, l


f, l = make(3)
f(torch.randn(2, 3), scale=2.0).sum().backward()
""",
    ),
    "cumsum_scan": (
        (10,),
        False,
        """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn import Linear, Parameter

l = Linear(1, 1)
x = torch.zeros(5, 1)
acc = l(torch.ones(1))
for i in range(5):
    acc.mul_(acc)
    x[i] = acc
x.sum().backward()
""",
    ),
    "tril_assign": (
        (12,),
        False,
        """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn import Linear, Parameter

v = torch.randn(3, requires_grad=True)
L = torch.zeros(2, 2)
L[0, 0] = v[0].exp()
L[1, 0] = v[1]
L[1, 1] = v[2].exp()
S = L @ L.t()
L[0, 0] = 1.0
S.sum().backward()
""",
    ),
    "tril_assign_ok": (
        (),
        False,
        """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.nn import Linear, Parameter

v = torch.randn(3, requires_grad=True)
L = torch.zeros(2, 2)
L[0, 0] = v[0].exp()
L[1, 0] = v[1]
L[1, 1] = v[2].exp()
S = L @ L.t()
S.sum().backward()
""",
    ),
    "gan_handed_in": (
        (11,),
        False,
        """\
import torch
from torch import nn, optim


def train(netG, netD, optG, optD, bce):
    pred = netD(netG(torch.randn(4, 8)))
    lossG = bce(pred, torch.ones(4, 1))
    lossD = bce(netD(torch.randn(4, 8)), torch.zeros(4, 1))
    optD.zero_grad()
    lossD.backward()
    optD.step()
    optG.zero_grad()
    lossG.backward()
    optG.step()


G, D = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
train(G, D, optim.Adam(G.parameters()), optim.Adam(D.parameters()), nn.BCEWithLogitsLoss())
""",
    ),
    "dropout_flag_by_place": (
        (12,),
        False,
        """\
import torch
import torch.nn.functional as F
from torch import nn

class Att(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        w = F.softmax(q @ k.transpose(-1, -2), -1)
        w = F.dropout(w, 0.5, True, True)
        return w @ v

Att(4)(torch.randn(2, 3, 4)).sum().backward()
""",
    ),
    "flow_coupling_halves": (
        (12,),
        False,
        """\
import torch
from torch import nn

class Coupling(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.s, self.t = nn.Linear(d // 2, d // 2), nn.Linear(d // 2, d // 2)
        self.d = d
    def forward(self, x):
        a, b = x[:, : self.d // 2], x[:, self.d // 2 :]
        s = torch.tanh(self.s(a))
        b.mul_(s.exp()).add_(self.t(a))
        return x, s.sum(-1)

class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.pre = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(Coupling(4) for _ in range(2))
    def forward(self, x):
        x = self.pre(x)
        ld = 0
        for b in self.blocks:
            x, l = b(x)
            ld = ld + l
        return x, ld

z, ld = Flow()(torch.randn(3, 4))
(z.pow(2).sum() - ld.sum()).backward()
""",
    ),
    "critic_step_before_actor": (
        (24, 26),
        False,
        """\
import torch
import torch.nn as nn
import torch.nn.functional as F

class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2 = nn.Linear(6, 16), nn.Linear(16, 1)
    def forward(self, s, a):
        return self.l2(F.relu(self.l1(torch.cat([s, a], 1))))

class Agent:
    def __init__(self):
        self.actor = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2), nn.Tanh())
        self.critic = Critic()
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=1e-3)
    def learn(self, s, a, r, s2):
        actor_loss = -self.critic(s, self.actor(s)).mean()
        target = r + 0.9 * self.critic(s2, self.actor(s2)).detach()
        critic_loss = F.mse_loss(self.critic(s, a), target)
        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()
        self.actor_opt.zero_grad()
        actor_loss.backward()
        self.actor_opt.step()

ag = Agent()
for _ in range(2):
    ag.learn(torch.randn(8, 4), torch.randn(8, 2), torch.randn(8, 1), torch.randn(8, 4))
""",
    ),
    "state_on_the_module": (
        (24,),
        False,
        """\
import torch
from torch import nn

class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRUCell(3, 5)
        self.out = nn.Linear(5, 1)
        self.h = None
    def reset(self):
        self.h = torch.zeros(2, 5)
    def forward(self, x):
        if self.h is None:
            self.reset()
        self.h = self.rnn(x, self.h)
        return self.out(self.h)

net = Stateful()
opt = torch.optim.RMSprop(net.parameters())
def fit(loader):
    for x, y in loader:
        loss = (net(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
fit([(torch.randn(2, 3), torch.randn(2, 1)) for _ in range(3)])
""",
    ),
    "state_on_the_module_detached": (
        (),
        False,
        """\
import torch
from torch import nn

class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRUCell(3, 5)
        self.out = nn.Linear(5, 1)
        self.h = None
    def reset(self):
        self.h = torch.zeros(2, 5)
    def forward(self, x):
        if self.h is None:
            self.reset()
        self.h = self.rnn(x, self.h.detach())
        return self.out(self.h)

net = Stateful()
opt = torch.optim.RMSprop(net.parameters())
def fit(loader):
    for x, y in loader:
        loss = (net(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
fit([(torch.randn(2, 3), torch.randn(2, 1)) for _ in range(3)])
""",
    ),
    "state_cut_by_a_function_that_calls_itself": (
        (),
        False,
        """\
import os
import torch
from torch import nn

def cut(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    else:
        return tuple(cut(v) for v in h)

class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        if kind in ("LSTM", "GRU"):
            self.rnn = getattr(nn, kind)(4, 8)
        else:
            self.rnn = nn.RNN(4, 8)

    def forward(self, x, h):
        return self.rnn(x, h)

    def start(self):
        w = next(self.parameters())
        if self.kind == "LSTM":
            return (w.new_zeros(1, 2, 8), w.new_zeros(1, 2, 8))
        return w.new_zeros(1, 2, 8)

net = Model(os.environ.get("KIND", "LSTM"))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
h = net.start()
for _ in range(3):
    h = cut(h)
    out, h = net(torch.randn(5, 2, 4), h)
    opt.zero_grad()
    out.sum().backward()
    opt.step()
""",
    ),
    "state_that_no_function_cuts": (
        (35,),
        False,
        """\
import os
import torch
from torch import nn

def cut(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    else:
        return tuple(cut(v) for v in h)

class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        if kind in ("LSTM", "GRU"):
            self.rnn = getattr(nn, kind)(4, 8)
        else:
            self.rnn = nn.RNN(4, 8)

    def forward(self, x, h):
        return self.rnn(x, h)

    def start(self):
        w = next(self.parameters())
        if self.kind == "LSTM":
            return (w.new_zeros(1, 2, 8), w.new_zeros(1, 2, 8))
        return w.new_zeros(1, 2, 8)

net = Model(os.environ.get("KIND", "LSTM"))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
h = net.start()
for _ in range(3):
    out, h = net(torch.randn(5, 2, 4), h)
    opt.zero_grad()
    out.sum().backward()
    opt.step()
""",
    ),
    "penalty_and_frozen_critic": (
        (),
        False,
        """\
import torch
from torch import nn

D = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 1))
G = nn.Sequential(nn.Linear(2, 8), nn.ReLU(inplace=True), nn.Linear(8, 4))
od, og = torch.optim.Adam(D.parameters()), torch.optim.Adam(G.parameters())

def penalty(real, fake):
    a = torch.rand(real.size(0), 1)
    x = (a * real + (1 - a) * fake).requires_grad_(True)
    g, = torch.autograd.grad(D(x).sum(), x, create_graph=True)
    return ((g.norm(2, 1) - 1) ** 2).mean()

for i in range(4):
    real = torch.randn(5, 4)
    for p in D.parameters():
        p.requires_grad = True
    fake = G(torch.randn(5, 2)).detach()
    loss = D(fake).mean() - D(real).mean() + 10 * penalty(real, fake)
    od.zero_grad(); loss.backward(); od.step()
    if i % 2:
        for p in D.parameters():
            p.requires_grad = False
        gl = -D(G(torch.randn(5, 2))).mean()
        og.zero_grad(); gl.backward(); og.step()
""",
    ),
}
