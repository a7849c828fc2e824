"""Bijections as flows of `normflows <https://github.com/VincentStimper/normalizing-flows>`_: ``pip install invattn[normflows]``.

>>> import torch, normflows, invattn, invattn.normflows
>>> blocks = [invattn.InvertibleAttention(3, kind=kind) for kind in ("dot-product", "concatenation")]
>>> model = normflows.NormalizingFlow(
...     normflows.distributions.DiagGaussian((3, 4, 4)), [invattn.normflows.Flow(block, estimator="exact") for block in blocks]
... )
>>> loss = model.forward_kld(torch.randn(16, 3, 4, 4))
>>> loss.backward()
>>> images, log_prob = model.sample(8)
>>> images.shape
torch.Size([8, 3, 4, 4])
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from invattn import Bijection
from invattn._adapter import Estimator, ModuleAdapter, Solver, other_library

__all__ = ["Flow"]

_flows = other_library("normflows", "normflows.flows", extra="normflows", needs="Flow")


class Flow(ModuleAdapter, _flows.Flow):
    """A bijection of invattn as a normflows.flows.Flow.

    Args:
        block: the bijection: a block, a chain or a flow.
        reverse: normflows' forward leads from noise to data. True (as in its Residual): forward undoes the block, so that densities and
            forward_kld need no solver. False: forward is block(x), so that samples and reverse_kld need none.
        shape: None: samples are as the block takes them. Else they are flat vectors, which the block sees in this shape, such as (C, H, W).
        estimator: of the log-determinant: "series", "roulette", "exact", or an options object.
        solver: of the inverse: "anderson", "fixed-point", "newton-krylov", or an options object.
        ignore_context: True: the block stands in a model with a context, which it does not look at. Else a context is refused.

    >>> import torch, invattn
    >>> flow = Flow(invattn.InvertibleAttention(3), estimator=invattn.SeriesLogDet(terms=20, seed=1))
    >>> z = torch.randn(5, 3, 4, 4)
    >>> x, log_det = flow(z)
    >>> again, minus = flow.inverse(x)
    >>> bool((again - z).abs().max() < 1e-4), bool((log_det + minus).abs().max() < 1e-3)
    (True, True)
    """

    def __init__(
        self,
        block: Bijection,
        *,
        reverse: bool = True,
        shape: Sequence[int] | None = None,
        estimator: Estimator = "series",
        solver: Solver = "anderson",
        ignore_context: bool = False,
    ) -> None:
        super().__init__()
        self._adapt(block, reverse, shape, estimator, solver)
        self.ignore_context = ignore_context

    def forward(self, z: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x and log|det dx/dz|."""
        self._refuse_context(context, self.ignore_context)
        return self._run(z, undo=self.reverse)

    def inverse(self, z: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The opposite direction, and log|det| of its derivative."""
        self._refuse_context(context, self.ignore_context)
        return self._run(z, undo=not self.reverse)
