def adapt(fast, grads, lr):
    for j, (w, g) in enumerate(zip(fast, grads)):
        fast[j] = w - lr * g  # WRITE
    for i, h in enumerate(fast):
        fast[i] = h = h.mul(2)  # WRITE
        print(h.sum())
    for k, (n, p) in enumerate(zip(grads, fast)):
        fast[k] = p.add(n)  # WRITE
    return fast
