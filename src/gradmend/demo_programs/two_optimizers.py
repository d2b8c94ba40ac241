# An actor and a critic share a trunk; the critic's step comes before the actor's backward.
import torch
import torch.nn as nn

torch.manual_seed(0)
trunk, actor, critic = nn.Linear(6, 16), nn.Linear(16, 3), nn.Linear(16, 1)
critic_opt = torch.optim.SGD([*trunk.parameters(), *critic.parameters()], lr=0.1)

state = torch.randn(10, 6)
hidden = torch.tanh(trunk(state))
value_loss = critic(hidden).pow(2).mean()
policy_loss = -torch.log_softmax(actor(torch.sigmoid(trunk(hidden @ trunk.weight))), dim=1)[:, 0].mean()

value_loss.backward(retain_graph=True)
critic_opt.step()
policy_loss.backward()
print(f"policy loss {policy_loss.item():.4f}, trunk gradient {trunk.weight.grad.norm():.4f}")
