def forward(self, x, mask):
    x.data.masked_fill_(mask, 0)  # WRITE
    x.data *= 2  # WRITE
    x.detach().add_(1)  # WRITE
    return x
