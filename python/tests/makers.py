"""One of every module of the package, small, with an input for it."""

import torch
from torch import nn

import invattn

KINDS = ["gaussian", "embedded-gaussian", "dot-product", "concatenation", "distance"]


class Branch(nn.Module):
    """A branch written in Python, a contraction."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 5)
        self.outer = nn.Linear(5, width)
        with torch.no_grad():
            for layer in (self.inner, self.outer):
                layer.weight.mul_(0.7 / torch.linalg.matrix_norm(layer.weight, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.inner(x)))


def attention(kind: str):
    return lambda: invattn.InvertibleAttention(3, kind=kind, bottleneck=1)


def chain():
    return invattn.Sequential(
        invattn.Squeeze(),
        invattn.ActNorm(12),
        invattn.InvertibleAttention(12, kind="dot-product"),
        invattn.InvertibleResidual(invattn.Convolution(12, 2, 2, hidden=4)),
    )


def flow():
    return invattn.Flow(
        channels=3, height=4, width=4, pixels="none", blocks=[1, 1], hidden=4, attention="gaussian", attention_blocks=[1], tolerance=1e-7
    )


def images(dtype=torch.float32):
    return 0.5 * torch.randn(2, 3, 4, 4, dtype=dtype)  # of a size at which blocks that were not trained are contractions


def points(dtype=torch.float32):
    return torch.randn(6, 3, dtype=dtype)


#: name: (how to make it, how to make its input)
BIJECTIONS = {
    **{kind: (attention(kind), images) for kind in KINDS},
    "convolution": (lambda: invattn.InvertibleResidual(invattn.Convolution(3, 4, 4, hidden=4)), images),
    "python": (lambda: invattn.InvertibleResidual(Branch()), points),
    "actnorm": (lambda: invattn.ActNorm(3), images),
    "squeeze": (invattn.Squeeze, images),
    "sequential": (chain, images),
    "flow": (flow, images),
}
BRANCHES = {
    "attention": (lambda: invattn.Attention(3, preset="plain", kind="embedded-gaussian", bottleneck=1), images),
    "convolution-branch": (lambda: invattn.Convolution(3, 4, 4, hidden=4), images),
}
MODULES = {**BIJECTIONS, **BRANCHES}


def started(make, make_input, dtype=torch.float32):
    """A module that has seen a first batch, in evaluation mode, and another batch."""
    module = make().to(dtype)
    with torch.no_grad():
        module(make_input(dtype))
    return module.eval(), make_input(dtype)
