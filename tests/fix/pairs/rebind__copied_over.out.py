def f(h, g, y):
    y = h * h  # SAVE
    h = g.mul_(2)  # WRITE
    h = g.mul_(2) + 1  # WRITE
    return h, y
