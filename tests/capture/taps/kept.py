"""A tensor kept for backward, then written: what watch() says of it, against what really became of its bytes."""

import inspect

import torch

import gradmend


def saved_by_mul(t):
    """A loss whose backward reads exactly the values of `t`, whatever its dtype."""
    w = torch.full((), 0.5, dtype=torch.complex128 if t.is_complex() else torch.float64, requires_grad=True)
    out = w * t
    return (torch.view_as_real(out) if out.is_complex() else out).sum()


def bits(t):
    return t.detach().contiguous().clone().reshape(-1).view(torch.uint8)


def written_while_kept(t, write, **watching):
    """Keep `t`, write, ask for it. Returns (the Conflict that stopped backward or None, the Session, changed)."""
    with gradmend.watch(**watching) as session:
        loss = saved_by_mul(t)
        kept = torch._C.TensorBase.detach(t)
        before = bits(kept)
        write(t)
        changed = not torch.equal(before, bits(kept))
        try:
            loss.backward()
        except gradmend.ConflictError as error:
            return error.conflict, session, changed
    return None, session, changed


def line_of(function):
    """The line of a lambda, or the line of a function's body that is marked `# here`."""
    lines, start = inspect.getsourcelines(function)
    marked = [i for i, text in enumerate(lines) if "# here" in text]
    return start + (marked[0] if marked else 0)
