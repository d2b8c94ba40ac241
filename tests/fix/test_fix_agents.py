"""Several optimizers that step in one loop: their steps go below the last backward, and no forward is computed again unasked."""

from __future__ import annotations

from collections.abc import Callable

from gradmend.fix.search.outcome import Plan

HEAD = "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"

# Each backward reaches one network's parameters only, and goes through the weights of those above it.
STAGES = """
nets = [nn.Linear(3, 3) for _ in range(3)]
opts = [torch.optim.SGD(n.parameters(), 0.1) for n in nets]
for it in range(3):
    h = torch.randn(4, 3)
    for n in nets:
        h = torch.tanh(n(h))
    losses = [(h * (i + 1) - 1).pow(2).mean() for i in range(3)]
    for i in reversed(range(3)):
        opts[i].zero_grad()
        losses[i].backward(retain_graph=True, inputs=list(nets[i].parameters()))
        opts[i].step()
"""
SPLIT = STAGES.replace(
    "        opts[i].step()\n", "    for i in reversed(range(3)):\n        opts[i].step()\n"
)

AGENTS = """
class Learner:
    def __init__(self):
        self.nets = {k: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)) for k in "ab"}
        self.opts = {k: torch.optim.SGD(n.parameters(), 0.1) for k, n in self.nets.items()}

    def learn(self, x):
        values = {k: n(x) for k, n in self.nets.items()}
        losses = {
            "a": (values["a"] - values["b"]).pow(2).mean(),
            "b": (values["b"] + values["a"]).pow(2).mean(),
        }
        for o in self.opts.values():
            o.zero_grad()
        for k in self.nets:
            losses[k].backward(retain_graph=True)
            self.opts[k].step()

learner = Learner()
for _ in range(3):
    learner.learn(torch.randn(4, 3))
"""


def test_steps_that_change_no_number_move_into_a_loop_of_their_own(plan: Callable[[str], Plan]) -> None:
    found = plan(HEAD + STAGES)
    assert found.status == "proven", found.message
    assert found.verdict is not None and found.verdict.exact
    assert list(found.sources.values()) == [HEAD + SPLIT]


def test_a_forward_is_not_computed_again_between_agents_unasked(plan: Callable[[str], Plan]) -> None:
    """Neither edit keeps the numbers of the forward that ran: both are the author's to choose, with their effect."""
    found = plan(HEAD + AGENTS)
    assert found.status == "unproven" and "ambiguous" in found.message
    assert not found.chosen or found.chosen[0] in [o.candidate for o in found.options]
    assert found.options and all("%" in o.told for o in found.options)
