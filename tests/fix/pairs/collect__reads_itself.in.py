def rollout(self, u):
    x = torch.zeros(len(u), 3)
    for t in range(len(u)):
        x[0] = u[t]  # WRITE
        x = self.f(x)
    return x
