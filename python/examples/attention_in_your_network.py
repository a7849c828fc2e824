# %% [markdown]
# # Invertible attention in a network of your own
#
# A block is a `torch.nn.Module`. It stands in any network, is trained by any loss and optimiser, and the `Guard` keeps it invertible. Here
# an attention block is the first layer of a small classifier that also says how likely an image is, for which its first layer has to be
# invertible: undoing it gives the image back. Without the guard training makes it something that cannot be undone so.

# %%
import argparse
import pathlib

import matplotlib.pyplot as plt
import torch
from torch import nn

import invattn

parser = argparse.ArgumentParser(description="Attention in a classifier, with and without the guard.")
parser.add_argument("--steps", type=int, default=250)
parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("."), help="folder of attention_in_your_network.png")
arguments = parser.parse_args()
torch.set_num_threads(1)  # numbers this small gain nothing from more

# %% [markdown]
# The task: two squares on a noisy ground; do they have the same colour? An answer has to compare distant positions.


# %%
def images_and_labels(count, size=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    palette = torch.tensor([[0.9, 0.2, 0.2], [0.2, 0.8, 0.3], [0.2, 0.3, 0.9]])
    first, other = torch.randint(3, (2, count), generator=generator)
    labels = torch.randint(2, (count,), generator=generator)
    second = torch.where(labels == 1, first, (first + 1 + other % 2) % 3)
    images = 0.4 + 0.1 * torch.rand(count, 3, size, size, generator=generator)
    for colours, left in ((first, 0), (second, size // 2)):
        corner = torch.randint(size // 2 - 4, (2, count), generator=generator)
        for i in range(count):
            top, start = 2 * corner[0, i], left + corner[1, i]
            images[i, :, top : top + 4, start : start + 4] = palette[colours[i]].reshape(3, 1, 1)
    return images - 0.5, labels


train, train_labels = images_and_labels(1024)
test, test_labels = images_and_labels(256, seed=1)


# %% [markdown]
# The network: squeeze 2 x 2 pixels into channels, attention, convolutions. The preset says how the branch of the block is held: `guarded`
# by the guard, `paper` by the paper's conditions on its weights alone.


# %%
def network(preset):
    torch.manual_seed(0)
    stem = invattn.Sequential(invattn.Squeeze(2), invattn.InvertibleAttention(12, preset=preset, kind="concatenation"))
    head = nn.Sequential(nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(384, 2))
    return nn.Sequential(stem, head)


def fit(model, guard=None):
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    generator = torch.Generator().manual_seed(2)
    for _ in range(arguments.steps):
        batch = torch.randint(len(train), (64,), generator=generator)
        stem, head = model
        z, log_det = stem.forward_log_det(train[batch])
        log_prob = (log_det.value - z.square().flatten(1).sum(1) / 2) / z[0].numel()  # nats per number, but for a constant
        loss = nn.functional.cross_entropy(head(z), train_labels[batch]) - log_prob.mean()
        if guard is not None:
            loss = loss + guard.penalty(batch)  # the numbers of the images: each keeps a vector of its own
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if guard is not None:
            guard.after_step()
    if guard is not None:
        for certificate in guard.finish(model, [train], "the 1,024 training images"):
            print(certificate)


# %% [markdown]
# What counts: the accuracy, the largest local constant of the branch on test images, and the V-score, the percentage of test images that
# come back from the block with a mean squared error below 10 (grey levels squared): by the paper's 100 fixed-point steps, and by Anderson's
# method, the default. Above a constant of 1 no solver can promise anything: the map need not be one-to-one.


# %%
@torch.no_grad()
def measure(name, model):
    model.eval()
    stem = model[0]
    accuracy = (model(test).argmax(1) == test_labels).double().mean().item()
    constant = invattn.local_constants(stem[1], stem[0](test)).largest
    scores = []
    for solver in (invattn.FixedPointOptions(max_iterations=100), invattn.AndersonOptions()):
        back, report = stem.inverse(stem(test), solver)
        errors = invattn.metrics.mean_squared_errors(255 * (back + 0.5), 255 * (test + 0.5))
        scores.append(invattn.metrics.valid_score(errors))
    print(f"{name:28} {accuracy:8.1%} {constant:16.3f} {scores[0]:20.1f} {scores[1]:18.1f}")
    return stem.inverse(stem(test), "fixed-point", max_iterations=100)[0]


# %%
print(f"{'':28} {'accuracy':>8} {'largest constant':>16} {'V-score, fixed point':>20} {'V-score, Anderson':>18}")
free = network("paper")
measure("before training", free)
fit(free)
lost = measure("trained, paper's conditions", free)

guarded = network("guarded")
fit(guarded, invattn.Guard(guarded, fraction=0.25))
found = measure("trained under the guard", guarded)

# %% [markdown]
# Images, and what the two trained blocks give back by the fixed point.

# %%
figure, axes = plt.subplots(3, 8, figsize=(8, 3.3), constrained_layout=True)
for row, (title, images) in enumerate((("images", test), ("paper", lost), ("guarded", found))):
    for column in range(8):
        axes[row, column].imshow((images[column] + 0.5).clamp(0, 1).nan_to_num().permute(1, 2, 0))
        axes[row, column].set(xticks=[], yticks=[])
    axes[row, 0].set_ylabel(title)
arguments.out.mkdir(parents=True, exist_ok=True)
figure.savefig(arguments.out / "attention_in_your_network.png", dpi=110)
