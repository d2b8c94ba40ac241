from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM131",
    name="second-backward",
    summary="Backward went a second time through a graph that an earlier backward has used up.",
    what="""
Finds a backward that meets a part of the graph which an earlier backward has freed: the same loss twice, two losses that
share a part, state carried over from one iteration to the next, or a part made once before a loop.
""",
    why="""
Backward frees what the graph kept as it goes, to save memory. A second pass finds the tensors gone. It is no in-place
error, and cloning does not help.
""",
    bad="""
import torch

x = torch.ones(3, requires_grad=True)
state = torch.ones(3)
for step in range(2):
    state = torch.tanh(state * x)
    loss = state.sum()
    loss.backward()
""",
    good="""
import torch

x = torch.ones(3, requires_grad=True)
state = torch.ones(3)
for step in range(2):
    state = state.detach()
    state = torch.tanh(state * x)
    loss = state.sum()
    loss.backward()
""",
    fix="""
The ways out mean different things. `detach()` where state is carried over stops the gradient there, as truncated
backpropagation through time does. For two losses that share a part, adding them and calling backward once gives the sum of
both gradients; so does `retain_graph=True` in the first call, at the cost of memory. A part made before a loop is
detached, or computed anew in it.
""",
    raises="Trying to backward through the graph a second time",
    right="1 - x.tanh() ** 2 + (1 - x.tanh().tanh() ** 2) * x.tanh()",
)
