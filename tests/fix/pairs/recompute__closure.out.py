net = Net()


def closure():
    opt.zero_grad()  # WRITE
    pred = net(x)
    loss = mse(pred, y)
    loss.backward()  # BACKWARD
    return loss
