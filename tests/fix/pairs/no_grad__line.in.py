def update(w, lr):
    w -= lr * w.grad  # WRITE
