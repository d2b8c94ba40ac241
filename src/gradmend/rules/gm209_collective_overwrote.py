from gradmend.rules._rule import Rule

RULE = Rule(
    code="GM209",
    name="collective-overwrote-saved",
    summary="A collective (all_reduce, broadcast, scatter) wrote into a tensor that backward needs.",
    what="""
Finds `torch.distributed` calls that write their argument, where that argument was kept by an earlier op:
statistics reduced in place after they were used, a buffer that receives the next batch while the last one's graph is alive.
""",
    why="""
Collectives write their tensors in place. all_reduce, broadcast, scatter and all_to_all move no version counter
(gloo, torch 2.13), so that backward silently uses what came over the network; the gathers do, and raise.
""",
    bad="""
import torch
import torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3, requires_grad=True)
stats = torch.tensor([1.0, 2.0, 3.0])
y = x * stats
dist.scatter(stats, [torch.full((3,), 9.0)])
y.sum().backward()
dist.destroy_process_group()
""",
    good="""
import torch
import torch.distributed as dist

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(3, requires_grad=True)
stats = torch.tensor([1.0, 2.0, 3.0])
y = x * stats
received = torch.empty(3)
dist.scatter(received, [torch.full((3,), 9.0)])
y.sum().backward()
dist.destroy_process_group()
""",
    fix="""
Let the collective write a clone or a new tensor. Where the result must take part in the gradient, use
`torch.distributed.nn.functional`, whose collectives are differentiable.
""",
    right="torch.tensor([1.0, 2.0, 3.0])",
)
