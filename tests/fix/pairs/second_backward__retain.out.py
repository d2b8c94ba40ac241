for x in data:
    loss = f(x, h)
    loss.backward(retain_graph=True)  # WRITE
    torch.autograd.grad(loss, h, create_graph=True, retain_graph=True)  # WRITE
    other.backward(retain_graph=True)  # WRITE
