class Masked(nn.Linear):
    def forward(self, x):
        self.weight *= self.mask  # WRITE
        return F.linear(x, self.weight, self.bias)

    def other(self, x):
        self.weight[0] = 0  # WRITE
        return x @ self.weight.t() + self.weight.sum()
