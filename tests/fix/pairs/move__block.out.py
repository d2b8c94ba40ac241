def step(x):
    loss = critic(x).mean()
    if loss > 0:
        loss.backward()  # BACKWARD
    with torch.no_grad():
        for p in critic.parameters():
            p.clamp_(-1, 1)  # WRITE
    return loss
