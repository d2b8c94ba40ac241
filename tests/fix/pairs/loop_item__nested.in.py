for (name, value), g in zip(fast.items(), grads):
    value.sub_(lr * g)  # WRITE
for i, (name, value) in enumerate(feats.items()):
    value *= i  # WRITE
for n, ((_, w), g) in enumerate(zip(self.fast.items(), grads)):
    w -= lr[n] * g  # WRITE
