"""Bijections as transforms of `torch.distributions`, for TransformedDistribution and for what is built on it, such as Pyro.

>>> import torch, invattn, invattn.distributions
>>> from torch.distributions import Independent, Normal, TransformedDistribution
>>> block = invattn.InvertibleAttention(3, kind="dot-product")
>>> base = Independent(Normal(torch.zeros(3, 4, 4), torch.ones(3, 4, 4)), 3)
>>> model = TransformedDistribution(base, [invattn.distributions.Transform(block, reverse=True, estimator="exact")])
>>> images = model.rsample((8,))                  # differentiable in the weights, by the implicit function theorem
>>> model.log_prob(images).shape
torch.Size([8])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints

from invattn import Bijection, UsageError
from invattn._adapter import Adapter, Estimator, Solver

__all__ = ["Transform"]


class Transform(Adapter, torch.distributions.Transform):
    """A bijection of invattn as a torch.distributions.Transform.

    Args:
        block: the bijection: a block, a chain or a flow.
        reverse: False: the transform is block(x). True: it undoes the block; as TransformedDistribution transforms noise to data, the
            density is then the direction that needs no solver.
        shape: None: an event is an image (C, H, W). Else events are flat vectors, which the block sees in this shape, such as (C, H, W)
            or (D,).
        estimator: of the log-determinant: "series", "roulette", "exact", or an options object. "exact", and a series with a seed, give the
            same number for the same x.
        solver: of the inverse: "anderson", "fixed-point", "newton-krylov", or an options object.
        cache_size: 1 keeps the last pair (x, y), as in torch: the inverse of what was just transformed then costs nothing.

    Any batch dimensions may precede the event, or none. Transforms are no modules: give the parameters of the block to an optimiser.

    >>> import invattn
    >>> t = Transform(invattn.InvertibleAttention(3), shape=(3, 2, 2), estimator=invattn.SeriesLogDet(terms=20, seed=1))
    >>> x = torch.randn(5, 7, 12)
    >>> y = t(x)
    >>> bool((t.inv(y) - x).abs().max() < 1e-4), t.log_abs_det_jacobian(x, y).shape
    (True, torch.Size([5, 7]))
    """

    bijective = True

    def __init__(
        self,
        block: Bijection,
        *,
        reverse: bool = False,
        shape: Sequence[int] | None = None,
        estimator: Estimator = "series",
        solver: Solver = "anderson",
        cache_size: int = 0,
    ) -> None:
        super().__init__(cache_size=cache_size)
        self._adapt(block, reverse, shape, estimator, solver)
        self._event_dim = 3 if shape is None else 1
        self.domain = self.codomain = constraints.independent(constraints.real, self._event_dim)

    def with_cache(self, cache_size: int = 1) -> Transform:
        if cache_size == self._cache_size:
            return self
        return type(self)(
            self.block, reverse=self.reverse, shape=self.shape, estimator=self.estimator, solver=self.solver, cache_size=cache_size
        )

    def _call(self, x: Tensor) -> Tensor:
        return self._run(x, self.reverse, self._event_dim, log_det=False)[0]

    def _inverse(self, y: Tensor) -> Tensor:
        return self._run(y, not self.reverse, self._event_dim, log_det=False)[0]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log|det dy/dx| of each event, at the one of the two points that the block takes: nothing is undone."""
        if self.reverse:
            return -self._run(y, False, self._event_dim)[1]
        return self._run(x, False, self._event_dim)[1]

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y and log|det dy/dx| at the cost of one pass; zuko asks for both."""
        return self._run(x, self.reverse, self._event_dim)

    def forward_shape(self, shape: Sequence[int]) -> torch.Size:
        return self._through(shape, self.reverse)

    def inverse_shape(self, shape: Sequence[int]) -> torch.Size:
        return self._through(shape, not self.reverse)

    def _through(self, shape: Sequence[int], undo: bool) -> torch.Size:
        shape = torch.Size(shape)
        if len(shape) < self._event_dim:
            raise UsageError(f"[invattn.distributions.Transform] expected at least {self._event_dim} dimensions, got {tuple(shape)}.")
        if self.shape is not None:
            return shape
        batch = len(shape) - self._event_dim
        return shape[:batch] + torch.Size(self._shape_through(shape[batch:], undo))

    def __getstate__(self) -> dict[str, Any]:
        state = self._state(super().__getstate__())
        if "_cached_x_y" in state:
            state["_cached_x_y"] = (None, None)
        return state

    def __repr__(self) -> str:
        return f"Transform({type(self.block).__name__}, {self._settings()})"
