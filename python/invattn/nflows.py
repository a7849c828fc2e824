"""Bijections as transforms of `nflows <https://github.com/bayesiains/nflows>`_: ``pip install invattn[nflows]``.

nflows' transforms lead from data to noise, and so does a block: densities need no solver, samples do.

>>> import torch, nflows.flows, nflows.distributions, invattn, invattn.nflows
>>> block = invattn.InvertibleAttention(3, kind="embedded-gaussian")
>>> flow = nflows.flows.Flow(invattn.nflows.Transform(block, estimator="exact"), nflows.distributions.StandardNormal([3, 4, 4]))
>>> flow.log_prob(torch.randn(16, 3, 4, 4)).shape
torch.Size([16])
>>> flow.sample(8).shape
torch.Size([8, 3, 4, 4])
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from invattn import Bijection
from invattn._adapter import Estimator, ModuleAdapter, Solver, other_library

__all__ = ["Transform"]

_transforms = other_library("nflows", "nflows.transforms", extra="nflows", needs="Transform")


class Transform(ModuleAdapter, _transforms.Transform):
    """A bijection of invattn as a nflows.transforms.Transform.

    Args:
        block: the bijection: a block, a chain or a flow.
        reverse: True: forward undoes the block.
        shape: None: samples are as the block takes them. Else they are flat vectors, which the block sees in this shape, such as (C, H, W).
        estimator: of the log-determinant: "series", "roulette", "exact", or an options object.
        solver: of the inverse: "anderson", "fixed-point", "newton-krylov", or an options object.
        ignore_context: True: the block stands in a model with a context, which it does not look at. Else a context is refused.

    >>> import torch, invattn
    >>> transform = Transform(invattn.InvertibleAttention(3), shape=(3, 2, 2), estimator="exact")
    >>> inputs = torch.randn(5, 12)
    >>> outputs, log_det = transform(inputs)
    >>> again, minus = transform.inverse(outputs)
    >>> bool((again - inputs).abs().max() < 1e-4), bool((log_det + minus).abs().max() < 1e-3)
    (True, True)
    """

    def __init__(
        self,
        block: Bijection,
        *,
        reverse: bool = False,
        shape: Sequence[int] | None = None,
        estimator: Estimator = "series",
        solver: Solver = "anderson",
        ignore_context: bool = False,
    ) -> None:
        super().__init__()
        self._adapt(block, reverse, shape, estimator, solver)
        self.ignore_context = ignore_context

    def forward(self, inputs: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The outputs and log|det d outputs / d inputs|."""
        self._refuse_context(context, self.ignore_context)
        return self._run(inputs, undo=self.reverse)

    def inverse(self, inputs: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The opposite direction, and log|det| of its derivative."""
        self._refuse_context(context, self.ignore_context)
        return self._run(inputs, undo=not self.reverse)
