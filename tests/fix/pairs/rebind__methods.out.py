def forward(self, x, y, m):
    x = x.relu()  # WRITE
    x = x.add(y, alpha=2)  # WRITE
    x = x.mul(2).add(y).clamp(min=0)  # WRITE a chain
    x = torch.relu(x)  # WRITE
    x = F.elu(x, 0.5)  # WRITE
    x = x.index_add(0, m, y)  # WRITE
    x = x.masked_fill(
        m,  # a comment inside
        0.0,
    )  # WRITE over lines
    x = y + 1  # WRITE
    return x
