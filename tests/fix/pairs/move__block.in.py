def step(x):
    loss = critic(x).mean()
    with torch.no_grad():
        for p in critic.parameters():
            p.clamp_(-1, 1)  # WRITE
    if loss > 0:
        loss.backward()  # BACKWARD
    return loss
