class Scale(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.k = 2
        if ctx.k:
            x.mul_(3)  # WRITE
        y[0] = 1
        return x, y.sum()
