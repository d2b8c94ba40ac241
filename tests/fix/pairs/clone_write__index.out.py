def forward(x, v):
    x = x.clone()
    x[:, 0] = v  # WRITE
    x = x.clone()
    x.view(-1)[::2].mul_(2)  # WRITE
    if v is None: x = x.clone(); x[0] = 1  # WRITE
    return x
