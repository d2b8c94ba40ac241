def draw(self):
    self.ids[:] = self.rng.integers(0, 9, size=4)  # WRITE
    return torch.from_numpy(self.ids).clone()
