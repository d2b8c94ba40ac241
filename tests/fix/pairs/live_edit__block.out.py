def forward(self, x):
    # drop some
    keep = draw(x)

    for i in keep:
        pass
    x.mul_(keep).add_(1); y = 2  # WRITE
    return x
