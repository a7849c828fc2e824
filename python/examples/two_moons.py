# %% [markdown]
# # A density in the plane, from a branch of your own
#
# Any torch network g that maps samples to samples of the same shape becomes a block y = x + g(x) with an inverse and a log-determinant. The
# `Guard` keeps it invertible while it trains. Here eight small perceptrons learn the two moons.

# %%
import argparse
import math
import pathlib

import matplotlib.pyplot as plt
import torch
from torch import nn

import invattn

parser = argparse.ArgumentParser(description="A flow of residual blocks over perceptrons learns two moons.")
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), help="folder of two_moons.png")
arguments = parser.parse_args()
torch.set_num_threads(1)  # numbers this small gain nothing from more
torch.manual_seed(0)

# %% [markdown]
# The data: two half circles with noise, brought to mean 0 and deviation 1.


# %%
def two_moons(count):
    angle = math.pi * torch.rand(count)
    upper = torch.rand(count) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos())
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin())
    points = torch.stack([x, y], 1) + 0.08 * torch.randn(count, 2)
    return (points - torch.tensor([0.5, 0.25])) / torch.tensor([0.87, 0.5])


# %% [markdown]
# The model: eight blocks in a chain. A branch written in Python is guarded, at constant 0.9, unless you say otherwise.


# %%
def perceptron(hidden=48):
    return nn.Sequential(nn.Linear(2, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 2))


flow = invattn.Sequential(*(invattn.InvertibleResidual(perceptron()) for _ in range(8)))
guard = invattn.Guard(flow, fraction=1, target=0.8, iterations=3)  # evaluate all samples of each batch: they are small
optimizer = torch.optim.Adam(flow.parameters(), 5e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.steps)


def log_prob(x):
    z, log_det = flow.forward_log_det(x, "exact")  # two numbers a sample: the exact determinant is cheap
    return log_det.value - z.square().sum(1) / 2 - math.log(2 * math.pi)


# %% [markdown]
# Maximum likelihood; the penalty of the guard comes after the forward pass.

# %%
for step in range(arguments.steps):
    loss = -log_prob(two_moons(256)).mean()
    total = loss + guard.penalty()
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    schedule.step()
    guard.after_step()
    if step % 100 == 0 or step == arguments.steps - 1:
        print(f"step {step}: {loss.item():.3f} nats, largest constant {guard.last_largest:.2f}")

# %% [markdown]
# At the end the guard measures the local constants on data, scales a branch where it is too large, and certifies each block.

# %%
flow.eval()
certificates = guard.finish(flow, [two_moons(2000)], "2,000 points of the two moons")
held_out = two_moons(2000)
with torch.no_grad():
    print(f"held-out: {-log_prob(held_out).mean():.3f} nats")
    back, report = flow.inverse(flow(held_out), tolerance=1e-6)
print(f"largest certified constant {max(certificate.constant for certificate in certificates):.3f}")
print(f"undone: {report.brief()}; largest error {(back - held_out).abs().max():.1e}")

# %% [markdown]
# Samples are noise, undone; the density is exact.

# %%
side = torch.linspace(-2.6, 2.6, 160)
grid = torch.cartesian_prod(side, side)
with torch.no_grad():
    samples, report = flow.inverse(torch.randn(2000, 2))
    density = log_prob(grid).exp().reshape(160, 160).T
figure, axes = plt.subplots(1, 3, figsize=(9, 3), constrained_layout=True)
for axis, title, points in ((axes[0], "data", held_out), (axes[1], "samples", samples)):
    axis.scatter(*points.T, s=2, linewidths=0)
    axis.set_title(title)
axes[2].imshow(density, extent=(-2.6, 2.6, -2.6, 2.6), origin="lower")
axes[2].set_title("density")
for axis in axes:
    axis.set(xlim=(-2.6, 2.6), ylim=(-2.6, 2.6), aspect="equal", xticks=[], yticks=[])
arguments.out.mkdir(parents=True, exist_ok=True)
figure.savefig(arguments.out / "two_moons.png", dpi=110)
print(f"samples: {report.brief()}; {arguments.out / 'two_moons.png'}")
