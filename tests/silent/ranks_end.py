"""A program that ends while a thread of gloo's wants to let go of a collective: plain PyTorch aborts (2.13, Python 3.11).

    python tests/silent/ranks_end.py [watch|heal] [held]

Two ranks in two processes; the first is the one to look at. No moment is left to chance: the second joins when the first
has given up its own hold of the collective, and the first then keeps Python to itself until it ends. With `held` it destroys
its process group first, but something holds the group, as a DDP module does.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

folder = tempfile.mkdtemp()
child = os.fork()
store = dist.FileStore(str(Path(folder, "store")), 2)
dist.init_process_group("gloo", store=store, rank=0 if child else 1, world_size=2)
numbers = torch.ones(10)
if not child:
    store.wait(["ready"])
    dist.all_reduce(numbers)
    store.wait(["over"])
    os._exit(0)

for name in {"watch", "heal"}.intersection(sys.argv):
    import gradmend

    scope = getattr(gradmend, name)()
    scope.__enter__()
work = dist.all_reduce(numbers, async_op=True)
del work
time.sleep(0.2)  # its thread takes over what is Python's in our state, and waits for the second
store.set("over", "")  # the second waits for its own collective first
sys.setswitchinterval(100)  # from here on this thread hands Python to no other, unless it waits itself
if "held" in sys.argv:
    group = dist.group.WORLD
    dist.destroy_process_group()
store.set("ready", "")
# By then the sum is written, and the thread that has written it asks for Python.
soon = time.monotonic() + 1.5
while time.monotonic() < soon:
    pass
