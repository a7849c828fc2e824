# %% [markdown]
# # A block of ours in a normflows model
#
# Attention looks at all positions at once. The data here are sets of eight points of the plane around a centre that differs from set to
# set: no point by itself says where it is. A normflows model of affine layers learns them with and without our blocks.

# %%
import argparse
import pathlib

import matplotlib.pyplot as plt
import normflows as nf
import torch

import invattn
import invattn.normflows

parser = argparse.ArgumentParser(description="A normflows model with invertible attention over sets of points.")
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), help="folder of normflows_model.png")
arguments = parser.parse_args()
torch.set_num_threads(1)  # numbers this small gain nothing from more
SHAPE = (2, 8, 1)  # channels: the two coordinates; positions: the points


def point_sets(count, seed):
    generator = torch.Generator().manual_seed(seed)
    centre = 2 * torch.randn(count, 2, 1, 1, generator=generator)
    return centre + 0.3 * torch.randn(count, *SHAPE, generator=generator)


train, test = point_sets(5000, seed=0), point_sets(1000, seed=1)

# %% [markdown]
# normflows' forward leads from noise to data. With `reverse=True`, the default, forward undoes the block, so that the density needs no
# solver.


# %%
def model(attention):
    torch.manual_seed(0)
    flows = []
    for _ in range(3):
        if attention:
            block = invattn.InvertibleAttention(2, preset="guarded", kind="dot-product", bottleneck=1)
            flows.append(invattn.normflows.Flow(block))
        flows.append(nf.flows.ActNorm(SHAPE))
    return nf.NormalizingFlow(nf.distributions.DiagGaussian(SHAPE), flows)


def fit(flow):
    guard = invattn.Guard(flow, fraction=1) if any(isinstance(part, invattn.Bijection) for part in flow.modules()) else None
    optimizer = torch.optim.Adam(flow.parameters(), 5e-3)
    generator = torch.Generator().manual_seed(2)
    for _ in range(arguments.steps):
        batch = torch.randint(len(train), (128,), generator=generator)
        loss = flow.forward_kld(train[batch])
        if guard is not None:
            loss = loss + guard.penalty(batch)  # the numbers of the sets: each keeps a vector of its own
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if guard is not None:
            guard.after_step()
    flow.eval()
    for part in flow.modules():
        if isinstance(part, invattn.normflows.Flow):
            part.estimator = "exact"  # training may estimate, a figure should not
    if guard is not None:
        for certificate in guard.finish(flow.forward_kld, [train[:1000]], "1,000 training sets"):
            print(certificate)


models = {"affine layers": model(attention=False), "with attention": model(attention=True)}
for name, flow in models.items():
    fit(flow)
    with torch.no_grad():
        print(f"{name:16} held-out log-likelihood {flow.log_prob(test).mean().item():8.3f} nats")

# %% [markdown]
# Samples: five sets each, a colour per set.

# %%
with torch.no_grad():
    drawn = {"data": test[:5], **{name: flow.sample(5)[0] for name, flow in models.items()}}
figure, axes = plt.subplots(1, 3, figsize=(9, 3), constrained_layout=True)
for axis, (title, sets) in zip(axes, drawn.items()):
    for points in sets:
        axis.scatter(points[0, :, 0], points[1, :, 0], s=12)
    axis.set(title=title, xlim=(-6, 6), ylim=(-6, 6), aspect="equal", xticks=[], yticks=[])
arguments.out.mkdir(parents=True, exist_ok=True)
figure.savefig(arguments.out / "normflows_model.png", dpi=110)
