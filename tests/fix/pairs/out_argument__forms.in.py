def forward(self, a, b):
    torch.mul(a, b, out=self.buf)  # WRITE
    c = torch.add(a, b, out=c)  # WRITE
    torch.matmul(
        a,
        b,
        out=self.prod,
    )  # WRITE
    return torch.sin(a, out=a).sum()  # WRITE
