"""Bijections as lazy transforms of `zuko <https://zuko.readthedocs.io>`_: ``pip install invattn[zuko]``.

zuko's transforms lead from data to noise, and so does a block: densities need no solver, samples do.

>>> import torch, zuko, invattn, invattn.zuko
>>> flow = zuko.flows.Flow(
...     transform=[
...         invattn.zuko.LazyTransform(invattn.InvertibleAttention(3), shape=(3, 2, 2), estimator="exact"),
...         *zuko.flows.NSF(12, transforms=1).transform.transforms,
...     ],
...     base=zuko.lazy.UnconditionalDistribution(zuko.distributions.DiagNormal, torch.zeros(12), torch.ones(12), buffer=True),
... )
>>> flow().log_prob(torch.randn(16, 12)).shape
torch.Size([16])
>>> flow().rsample((8,)).shape
torch.Size([8, 12])
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from invattn import Bijection
from invattn._adapter import Estimator, ModuleAdapter, Solver, other_library
from invattn.distributions import Transform

__all__ = ["LazyTransform"]

_lazy = other_library("zuko", "zuko.lazy", extra="zuko", needs="LazyTransform")


class LazyTransform(ModuleAdapter, _lazy.LazyTransform):
    """A bijection of invattn as a zuko.lazy.LazyTransform: a module that gives an invattn.distributions.Transform.

    Args:
        block: the bijection: a block, a chain or a flow.
        reverse: True: the transform undoes the block.
        shape: None: an event is an image (C, H, W). Else events are flat vectors, as in most of zuko, which the block sees in this shape.
        estimator: of the log-determinant: "series", "roulette", "exact", or an options object.
        solver: of the inverse: "anderson", "fixed-point", "newton-krylov", or an options object.
        ignore_context: True: the block stands in a flow with a context, which it does not look at. Else a context is refused.

    >>> import torch, invattn
    >>> lazy = LazyTransform(invattn.InvertibleAttention(3), shape=(3, 4, 4), solver=invattn.AndersonOptions(tolerance=1e-7))
    >>> x = torch.randn(2, 5, 48)
    >>> bool((lazy().inv(lazy()(x)) - x).abs().max() < 1e-4)
    True
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

    def forward(self, c: Tensor | None = None) -> Transform:
        self._refuse_context(c, self.ignore_context)
        return Transform(self.block, reverse=self.reverse, shape=self.shape, estimator=self.estimator, solver=self.solver)
