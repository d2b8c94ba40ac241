def forward(x, v):
    x[:, 0] = v  # WRITE
    x.view(-1)[::2].mul_(2)  # WRITE
    if v is None: x[0] = 1  # WRITE
    return x
