def forward(self, x, y, m):
    x.relu_()  # WRITE
    x.add_(y, alpha=2)  # WRITE
    x.mul_(2).add_(y).clamp_(min=0)  # WRITE a chain
    torch.relu_(x)  # WRITE
    F.elu_(x, 0.5)  # WRITE
    x.index_add_(0, m, y)  # WRITE
    x.masked_fill_(
        m,  # a comment inside
        0.0,
    )  # WRITE over lines
    x.copy_(y + 1)  # WRITE
    return x
