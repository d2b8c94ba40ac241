def forward(self, x, w):
    x = x + w  # WRITE
    x = x * (w + 1)  # WRITE a sum needs parentheses
    x = x - 0.5 * w  # WRITE a product does not
    x = x / (w if w is not None else 1)  # WRITE
    x = x ** 2  # WRITE
    x  =  x @ w  # WRITE odd spacing stays
    x = x + (w - 1)  # WRITE parentheses that are there
    x = x // -w  # WRITE
    return x
