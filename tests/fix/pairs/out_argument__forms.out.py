def forward(self, a, b):
    self.buf = torch.mul(a, b)  # WRITE
    c = torch.add(a, b)  # WRITE
    self.prod = torch.matmul(
        a,
        b,
    )  # WRITE
    return (a := torch.sin(a)).sum()  # WRITE
