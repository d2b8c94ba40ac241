import torch

net = Net()
for chunk in chunks:
    loss = net(chunk)
    loss.backward()  # BACKWARD
    clip(net)
    opt.step()
    opt.zero_grad()  # WRITE CARRIED net.h
    net.h = net.h.detach()
    print(loss)
