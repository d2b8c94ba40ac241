for x in data:
    loss = f(x, h)
    loss.backward()  # WRITE
    torch.autograd.grad(loss, h, create_graph=True)  # WRITE
    other.backward(retain_graph=False)  # WRITE
