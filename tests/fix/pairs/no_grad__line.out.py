def update(w, lr):
    with torch.no_grad():
        w -= lr * w.grad  # WRITE
