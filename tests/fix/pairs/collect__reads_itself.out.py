def rollout(self, u):
    x = list(torch.zeros(len(u), 3))
    for t in range(len(u)):
        x[0] = u[t]  # WRITE
        x = list(self.f(torch.stack(x)))
    return torch.stack(x)
