for x in data:
    losses = f(x)
    for loss in losses:  # WRITE
        loss.backward()  # BACKWARD
    opt.step()
