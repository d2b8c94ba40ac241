def outer(x):
    def inner(t):
        return t.mul(2)  # WRITE

    act = lambda t: t.add(1).relu()  # WRITE
    rows = [r.clamp(0) for r in x]  # WRITE
    if (n := x.sqrt()).sum() > 0:  # WRITE
        return inner(n)
    print(f"norm {x.abs().sum():.3f} after {len(rows)} rows")  # WRITE
    return torch.cat([x.exp(), act(x)], dim=0)  # WRITE


@decorated(scale.neg())  # WRITE
async def step(x):
    y = z = await fetch(x.sigmoid())  # WRITE
    a, b = x.mul(2), x.shape  # WRITE
    yield x.tanh()  # WRITE
    del y, z
