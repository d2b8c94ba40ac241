def rollout(self, u):
    x = torch.zeros(len(u) + 1, 3)
    for t in range(len(u)):
        x[t + 1] = self.f(x[t]) + u[t]  # WRITE
    return x.mean(0), x[-1]
