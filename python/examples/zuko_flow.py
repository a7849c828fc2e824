# %% [markdown]
# # A block of ours in a zuko flow
#
# `invattn.zuko.LazyTransform` is a transform like zuko's own. Here a neural spline flow learns small image patches, once by itself and once
# with an attention block in front. Both train on the same data, for the same number of steps.

# %%
import argparse
import time

import torch
import zuko

import invattn
import invattn.zuko

parser = argparse.ArgumentParser(description="A zuko flow with and without invertible attention.")
parser.add_argument("--steps", type=int, default=300)
arguments = parser.parse_args()
torch.set_num_threads(1)  # numbers this small gain nothing from more
SHAPE = (3, 4, 4)
FEATURES = 48

# %% [markdown]
# The data: patches of 4 x 4 pixels from random overlapping coloured rectangles, with noise, so that a patch has few colours.


# %%
def patches(count, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 3, 1, 1, generator=generator).expand(count, *SHAPE).clone()
    columns = torch.arange(4)
    for _ in range(2):
        low = torch.randint(-2, 4, (2, count, 1), generator=generator)
        inside = (columns >= low) & (columns < low + torch.randint(1, 5, (2, count, 1), generator=generator))
        mask = inside[0].unsqueeze(2) & inside[1].unsqueeze(1)
        x = torch.where(mask.unsqueeze(1), torch.rand(count, 3, 1, 1, generator=generator), x)
    x = x + 0.05 * torch.randn(x.shape, generator=generator)
    return (4 * (x - 0.5)).flatten(1)


train, test = patches(20000, seed=0), patches(2000, seed=1)

# %% [markdown]
# The flows. zuko's transforms lead from data to noise, and so does the block, which sees the 48 numbers as 3 channels of 4 x 4 positions.


# %%
def spline():
    torch.manual_seed(0)
    return zuko.flows.NSF(FEATURES, transforms=2, bins=6, hidden_features=[64, 64])


def with_attention():
    flow = spline()
    blocks = [
        invattn.zuko.LazyTransform(invattn.InvertibleAttention(3, preset="guarded", kind=kind), shape=SHAPE)
        for kind in ("dot-product", "embedded-gaussian")
    ]
    return zuko.lazy.Flow([*blocks, flow.transform], flow.base)


# %% [markdown]
# The `Guard` finds the blocks inside of zuko's modules.


# %%
def fit(flow):
    guard = invattn.Guard(flow, fraction=0.25) if any(isinstance(part, invattn.Bijection) for part in flow.modules()) else None
    optimizer = torch.optim.Adam(flow.parameters(), 2e-3)
    generator = torch.Generator().manual_seed(2)
    for _ in range(arguments.steps):
        batch = torch.randint(len(train), (256,), generator=generator)
        loss = -flow().log_prob(train[batch]).mean()
        if guard is not None:
            loss = loss + guard.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if guard is not None:
            guard.after_step()
    if guard is not None:
        guard.finish(lambda x: flow().log_prob(x), [train[:2000]], "2,000 training patches")


@torch.no_grad()
def held_out(flow):
    flow.eval()
    for part in flow.modules():
        if isinstance(part, invattn.zuko.LazyTransform):
            part.estimator = "exact"  # training may estimate, a figure should not
    return torch.cat([flow().log_prob(part) for part in test.split(500)]).mean().item()


for name, flow in (("spline flow", spline()), ("with attention in front", with_attention())):
    start = time.perf_counter()
    fit(flow)
    print(f"{name:24} held-out log-likelihood {held_out(flow):8.3f} nats   ({time.perf_counter() - start:.0f} s)")

# %% [markdown]
# Samples come from noise through the inverses of both libraries' transforms, and carry gradients.

# %%
samples = flow().rsample((4,))
print("samples", tuple(samples.shape), "with gradients:", samples.requires_grad)
print(flow().transform.transforms[0])
