def outer(x):
    def inner(t):
        return t.mul_(2)  # WRITE

    act = lambda t: t.add_(1).relu_()  # WRITE
    rows = [r.clamp_(0) for r in x]  # WRITE
    if (n := x.sqrt_()).sum() > 0:  # WRITE
        return inner(n)
    print(f"norm {x.abs_().sum():.3f} after {len(rows)} rows")  # WRITE
    return torch.cat([x.exp_(), act(x)], dim=0)  # WRITE


@decorated(scale.neg_())  # WRITE
async def step(x):
    y = z = await fetch(x.sigmoid_())  # WRITE
    a, b = x.mul_(2), x.shape  # WRITE
    yield x.tanh_()  # WRITE
    del y, z
