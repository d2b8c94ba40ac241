"""A class that nobody makes is tried on its own: a write that harms on some arms is a warning there.

PyTorch runs each class as well, with the line below it: it fails where something is told, and only there.
"""

from __future__ import annotations

import pytest

from gradmend.check.files import check_file

HEAD = "import numpy as np\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
LATENT = """\
class VAE(nn.Module):
    def __init__(self, mean=False):
        super().__init__()
        {guard}
        self.lin = nn.Linear(3, 3)
        self.mean = mean
    def sample(self, mu, logvar):
        if not self.training and self.mean:
            return mu
        std = torch.exp(0.5 * logvar)
        if self.training:
            std = torch.randn_like(std).mul_(std)
        return {write}
    def forward(self, x):
        h = self.lin(x)
        z = self.sample(h, h)
        return self.lin(z), z
"""
STATE = """\
def update(state, x, dt, bias=None, softplus=False):
    if bias is not None:
        dt = dt + bias
    if softplus:
        dt = F.softplus(dt)
    new = state.float() * torch.exp(dt) + x
    {write}
    return new * 2
class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
    def forward(self, x, cache=None):
        dt = self.lin(x)
        if cache is not None and x.shape[0] == 1:
            out = update(cache, x, dt, bias=self.lin.bias)
        else:
            out = dt
        return self.lin(out)
"""
SHIFT = """\
class Shift(nn.Module):
    def __init__(self, layer=0):
        super().__init__()
        self.layer = layer
        self.mix = nn.Parameter(torch.ones(3))
        self.key = nn.Linear(3, 3)
    def forward(self, hidden, state=None):
        if hidden.size(1) == 1 and state is not None:
            shifted = state[0][:, :, self.layer]
        else:
            shifted = hidden * 2
        key = hidden * self.mix + shifted * (1 - self.mix)
        if state is not None:
            {write}
        return self.key(key), state
"""
CHUNKS = """\
def chunked(layer, x, size, out=None):
    n = x.shape[0]
    for i in range(0, n, size):
        part = layer(x[i : i + size])
        if out is None:
            out = part.new_zeros(x.shape)
        {write}
    return out
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 3)
    def forward(self, x, size=None, inplace_safe=False):
        x = x * 1
        bias = self.lin(x)
        if size is not None:
            x = chunked(self.lin, x, size, out=x if inplace_safe else None)
        else:
            x = self.lin(x)
        return x + bias
"""
VAE_RUNS = "VAE().eval()(torch.ones(2, 3))[0].sum().backward()\n"
MIXER_RUNS = "Mixer()(torch.ones(1, 3), torch.ones(1, 3)).sum().backward()\n"
SHIFT_RUNS = "Shift()(torch.ones(3, 1, 3), [torch.ones(3, 3, 1)])[0].sum().backward()\n"
CHUNKS_RUN = "Attention()(torch.ones(4, 3), 2, True).sum().backward()\n"
CASES = {
    "a mode that decides what is written": (LATENT.replace("{guard}", "pass"), "std.add_(mu)", "std.add(mu)", "GM101", VAE_RUNS),
    "behind a test of an array": (
        LATENT.replace("{guard}", "if np.any(np.atleast_1d(2) % 2 == 1): raise ValueError"),
        "std.add_(mu)", "std.add(mu)", "GM101", VAE_RUNS,
    ),
    "a state beside options": (STATE, "state.copy_(new)", "state = new", "GM102", MIXER_RUNS),
    "a state that one arm read": (
        SHIFT, "state[0][:, :, self.layer] = hidden[:, -1]", "state = [hidden]", "GM103", SHIFT_RUNS,
    ),
    "an output that one arm gave": (CHUNKS, "out[i : i + size] = part", "out = out.slice_scatter(part, 0, i, i + size)", "GM103", CHUNKS_RUN),
}  # fmt: skip


def told(source: str) -> list[tuple[int, str, str]]:
    found = check_file("/nowhere/net.py", source.encode()).findings
    return [(f.place.line, f.rule, f.severity) for f in found]


@pytest.mark.parametrize("case", CASES)
def test_a_warning_where_some_run_fails(case: str) -> None:
    body, write, _, rule, runs = CASES[case]
    source = HEAD + body.replace("{write}", write)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        exec(source + runs, {})
    line = next(i for i, text in enumerate(source.splitlines(), 1) if write in text)
    assert told(source) == [(line, rule, "warning")]


@pytest.mark.parametrize("case", CASES)
def test_nothing_where_none_does(case: str) -> None:
    body, _, instead, _, runs = CASES[case]
    source = HEAD + body.replace("{write}", instead)
    exec(source + runs, {})
    assert told(source) == []


def test_a_constant_beside_a_test_adds_nothing_to_it() -> None:
    """`self.training or False` and `self.training` ask the same: what one arm keeps, the other never writes."""
    source = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.always = True
        self.lin = nn.Linear(3, 3)
    def forward(self, x):
        if self.training and self.always:
            y = self.lin(x).exp()
        else:
            y = self.lin(x) + 1
        if not self.training:
            y += 1
        return y
"""
    assert told(HEAD + source) == []
    for mode in ("train", "eval"):
        exec(HEAD + source + f"Net().{mode}()(torch.ones(2, 3)).sum().backward()", {})
    assert told(HEAD + source.replace("if not self", "if self")) == [(16, "GM101", "warning")]
