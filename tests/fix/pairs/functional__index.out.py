def forward(x, v, keep, i):
    x = x.masked_fill(x < 0, 0.5)  # WRITE
    x = torch.where(~keep, v, x)  # WRITE
    x = x.select_scatter(v, 0, i)  # WRITE
    x = x.slice_scatter(v, 0, start=1, end=3)  # WRITE
    return x
