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
}
