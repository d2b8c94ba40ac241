loss.backward()
with torch.no_grad():
    w -= lr * w.grad  # WRITE
    b -= lr * b.grad
    w.grad = b.grad = None
print(w)
