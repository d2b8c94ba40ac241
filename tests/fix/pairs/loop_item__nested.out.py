for (name, value), g in zip(fast.items(), grads):
    fast[name] = value.sub(lr * g)  # WRITE
for i, (name, value) in enumerate(feats.items()):
    feats[name] = value * i  # WRITE
for n, ((_, w), g) in enumerate(zip(self.fast.items(), grads)):
    self.fast[_] = w - lr[n] * g  # WRITE
