def forward(self, x, mask):
    x = x.masked_fill(mask, 0)  # WRITE
    x = x * 2  # WRITE
    x = x.add(1)  # WRITE
    return x
