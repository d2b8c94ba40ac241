def forward(x, v, keep, i):
    x[x < 0] = 0.5  # WRITE
    x[~keep] = v  # WRITE
    x[i] = v  # WRITE
    x[1:3] = v  # WRITE
    return x
