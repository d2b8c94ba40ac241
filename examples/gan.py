"""A GAN whose discriminator steps between the generator's forward and its backward. PyTorch refuses; healed, it trains.

gradmend run examples/gan.py            # names the step
gradmend run --heal examples/gan.py     # trains on
gradmend fix examples/gan.py            # moves it
"""

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
g_opt = torch.optim.Adam(generator.parameters(), 0.01)
d_opt = torch.optim.Adam(critic.parameters(), 0.01)
bce = nn.BCEWithLogitsLoss()
real, one, zero = torch.randn(32, 2) + 2, torch.ones(32, 1), torch.zeros(32, 1)

for _ in range(3):
    fake = generator(torch.randn(32, 2))
    judged = critic(fake)
    d_loss = bce(critic(real), one) + bce(judged, zero)
    g_loss = bce(judged, one)
    d_opt.zero_grad()
    d_loss.backward(retain_graph=True)
    d_opt.step()
    g_opt.zero_grad()
    g_loss.backward()
    g_opt.step()
print(f"generator {g_loss.item():.4f}, critic {d_loss.item():.4f}")
