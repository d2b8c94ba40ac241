for x in data:
    losses = f(x)
    sum(losses).backward()  # BACKWARD
    opt.step()
