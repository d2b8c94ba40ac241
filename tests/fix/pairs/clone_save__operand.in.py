def forward(self, z):
    self.weight.mul_(0.5)  # WRITE
    return F.normalize(z, dim=1) @ self.weight.t()  # SAVE
