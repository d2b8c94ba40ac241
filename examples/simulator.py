"""A physics simulator that updates its state in place, as simulators do: meant as it is written, so it is healed.

Springs on a ring; the stiffness is learned from where the masses end. The healed gradient is checked against one of a
simulator that makes new tensors.

    python examples/simulator.py
"""

import torch

import gradmend


def simulate(stiffness, steps=200, dt=0.01, inplace=True):
    place, speed = torch.linspace(0, 1, 8) + 0 * stiffness, torch.zeros(8) + 0 * stiffness
    for _ in range(steps):
        force = stiffness * (place.roll(1) - 2 * place + place.roll(-1)) - torch.sin(place)
        if inplace:
            speed += dt * force
            place += dt * speed
        else:
            speed = speed + dt * force
            place = place + dt * speed
    return place.pow(2).sum()


def gradient(inplace):
    stiffness = torch.tensor(3.0, requires_grad=True)
    simulate(stiffness, inplace=inplace).backward()
    return stiffness.grad


with gradmend.heal() as session:
    healed = gradient(inplace=True)
right = gradient(inplace=False)
assert torch.equal(healed, right), (healed, right)
kept = sum(c.healed_bytes for c in session)
print(f"healed gradient {healed.item():.6f}, out of place {right.item():.6f}, {kept} bytes kept")
