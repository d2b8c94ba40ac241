def adapt(fast, grads, lr):
    for w, g in zip(fast, grads):
        w -= lr * g  # WRITE
    for h in fast:
        h.mul_(2)  # WRITE
        print(h.sum())
    for k, (n, p) in enumerate(zip(grads, fast)):
        p.add_(n)  # WRITE
    return fast
