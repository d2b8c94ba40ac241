def step(self, x):
    self.loss.backward()
    other = g(x)
    print(self.loss.item()); seen.append(other.item())
    scaler.scale(other).backward()  # BACKWARD # WRITE
