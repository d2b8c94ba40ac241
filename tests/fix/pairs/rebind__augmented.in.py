def forward(self, x, w):
    x += w  # WRITE
    x *= w + 1  # WRITE a sum needs parentheses
    x -= 0.5 * w  # WRITE a product does not
    x /= w if w is not None else 1  # WRITE
    x **= 2  # WRITE
    x  @=  w  # WRITE odd spacing stays
    x += (w - 1)  # WRITE parentheses that are there
    x //= -w  # WRITE
    return x
