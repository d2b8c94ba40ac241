def f(h, g, y):
    y = h * h  # SAVE
    h.copy_(g.mul_(2))  # WRITE
    h.zero_().copy_(g.mul_(2) + 1)  # WRITE
    return h, y
