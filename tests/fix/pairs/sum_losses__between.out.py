def step(self, x):
    other = g(x)
    print(self.loss.item()); seen.append(other.item())
    (self.loss + scaler.scale(other)).backward()  # BACKWARD # WRITE
