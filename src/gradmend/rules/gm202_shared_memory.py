from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM202",
    name="shared-memory-changed",
    summary="Memory that a saved tensor shares with NumPy, DLPack or a raw storage was changed from outside.",
    what="""
Finds saved tensors whose bytes changed behind torch's back: through the array of `.numpy()` or the one
given to `torch.from_numpy`, through a DLPack import, a buffer, an untyped storage or a raw pointer.
""",
    why="""
The array and the tensor are one piece of memory. NumPy knows nothing of version counters, so backward takes
the new bytes for the old ones and the gradient is silently wrong: a replay buffer or a data loader that
reuses its array is the common form.
""",
    bad="""
import numpy as np
import torch

batch = np.array([1.0, 2.0, 3.0], dtype=np.float32)
x = torch.ones(3, requires_grad=True)
y = x * torch.from_numpy(batch)
batch[:] = 7.0
y.sum().backward()
""",
    good="""
import numpy as np
import torch

batch = np.array([1.0, 2.0, 3.0], dtype=np.float32)
x = torch.ones(3, requires_grad=True)
y = x * torch.tensor(batch)
batch[:] = 7.0
y.sum().backward()
""",
    fix="""
`torch.tensor(array)` and `array.copy()` copy, and are always safe; the price is one copy of the batch.
""",
    right="torch.tensor([1.0, 2.0, 3.0])",
)
