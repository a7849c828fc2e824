"""Blocks and checks that the tests of the adapters share."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

import invattn

KINDS = ["gaussian", "embedded-gaussian", "dot-product", "concatenation"]
TIGHT = invattn.AndersonOptions(tolerance=1e-12, max_iterations=200)  # in float64


def attention(kind: str = "dot-product", shape: tuple[int, int, int] = (3, 2, 2), constant: float = 0.6) -> invattn.InvertibleAttention:
    """A block in float64 with a largest local constant of `constant` at standard normal numbers: far from the identity, and invertible."""
    block = invattn.InvertibleAttention(shape[0], preset="guarded", kind=kind, bottleneck=1, start="uniform").double()
    scale_to(block, torch.randn(64, *shape, dtype=torch.float64), constant)
    return block


def scale_to(block: invattn.InvertibleAttention, x: Tensor, constant: float) -> None:
    """Scales g, so that its largest local constant at x is `constant`."""
    with torch.no_grad():
        for name, weight in block.named_parameters():
            if name.startswith("branch.output."):
                weight.uniform_(-1, 1)
        largest = invattn.local_constants(block, x).largest
        for name, weight in block.named_parameters():
            if name.startswith("branch.output."):
                weight.mul_(constant / largest)


class Perceptron(nn.Module):
    """A branch of one's own on vectors."""

    def __init__(self, size: int = 2, hidden: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, size))
        with torch.no_grad():
            for layer in (self.layers[0], self.layers[2]):
                layer.weight.mul_(0.7 / torch.linalg.matrix_norm(layer.weight, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def perceptron(size: int = 2) -> invattn.InvertibleResidual:
    return invattn.InvertibleResidual(Perceptron(size).double())


def chain() -> invattn.Sequential:
    """(3, 4, 4) to (12, 2, 2)."""
    return invattn.Sequential(invattn.Squeeze(2), attention(shape=(12, 2, 2)), attention("concatenation", (12, 2, 2)))


def small_flow() -> invattn.Flow:
    """(3, 4, 4) to 48 latents (48, 1, 1)."""
    options = {"channels": 3, "height": 4, "width": 4, "blocks": [1, 1], "hidden": 8, "attention_blocks": [1], "pixels": "none"}
    flow = invattn.Flow(**options, squeeze=False, split=False, iterations=0, tolerance=1e-10).double()
    flow(torch.randn(32, 3, 4, 4, dtype=torch.float64))  # the first batch sets scales and shifts
    return flow.eval()


def log_abs_det(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """log|det| of the Jacobian of `function`, batch to batch, at each sample: by autograd, entry after entry."""
    values = []
    for sample in x:
        jacobian = torch.autograd.functional.jacobian(lambda v: function(v.reshape(1, *sample.shape)).flatten(), sample.flatten())
        values.append(torch.linalg.slogdet(jacobian).logabsdet)
    return torch.stack(values)


def assert_same(actual: Tensor, expected: Tensor, tolerance: float = 1e-8) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def assert_gradient(loss: Callable[[], Tensor], weights: Iterable[nn.Parameter], step: float = 1e-5) -> None:
    """The gradient of `loss` is what differences of it say, along the gradient itself and along a random direction."""
    weights = [weight for weight in weights if weight.requires_grad]
    gradients = torch.autograd.grad(loss(), weights)
    size = torch.sqrt(sum(gradient.square().sum() for gradient in gradients))
    assert size > 1e-6, "the gradient vanishes"
    noise = [torch.randn_like(weight) for weight in weights]
    for direction in ([gradient / size for gradient in gradients], [n / torch.cat([m.flatten() for m in noise]).norm() for n in noise]):
        values = []
        for sign in (1, -2, 1):  # there, over, and back again
            with torch.no_grad():
                for weight, part in zip(weights, direction):
                    weight.add_(sign * step * part)
                values.append(loss())
        expected = sum((gradient * part).sum() for gradient, part in zip(gradients, direction))
        assert_same((values[0] - values[1]) / (2 * step), expected, 1e-5 * max(1.0, float(size)))


def copies(module: nn.Module) -> list[nn.Module]:
    return [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
