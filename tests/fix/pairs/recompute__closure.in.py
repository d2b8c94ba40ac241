net = Net()
pred = net(x)


def closure():
    opt.zero_grad()  # WRITE
    loss = mse(pred, y)
    loss.backward()  # BACKWARD
    return loss
