"""Bijections as invertible modules of `FrEIA <https://github.com/vislearn/FrEIA>`_: ``pip install invattn[freia]``.

>>> import torch, FrEIA.framework, FrEIA.modules, invattn, invattn.freia
>>> net = FrEIA.framework.SequenceINN(3, 4, 4)
>>> net.append(FrEIA.modules.ActNorm)
>>> net.append(invattn.freia.InvertibleModule, block=lambda channels, *size: invattn.InvertibleAttention(channels), estimator="exact")
>>> z, log_det = net(torch.randn(16, 3, 4, 4))
>>> images, minus = net(z, rev=True)
>>> bool((log_det + minus).abs().max() < 1e-3)
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from invattn import Bijection, UsageError
from invattn._adapter import Estimator, ModuleAdapter, Solver, other_library

__all__ = ["InvertibleModule"]

_modules = other_library("FrEIA", "FrEIA.modules", extra="freia", needs="InvertibleModule")


class InvertibleModule(ModuleAdapter, _modules.InvertibleModule):
    """A bijection of invattn as a FrEIA.modules.InvertibleModule, for SequenceINN.append and for a Node of a GraphINN.

    Args:
        dims_in: FrEIA gives it: the shape of the one input, without the batch.
        dims_c: FrEIA gives it: the shapes of conditions. There must be none.
        block: the bijection; or a function that makes it of the sizes of the input, block(C, H, W). With `shape` it is called with that.
        reverse: True: the forward direction (rev=False) undoes the block.
        shape: None: the input is as the block takes it. Else it is flat vectors, which the block sees in this shape, such as (C, H, W).
        estimator: of the log-determinant: "series", "roulette", "exact", or an options object.
        solver: of the inverse: "anderson", "fixed-point", "newton-krylov", or an options object.

    >>> import torch, invattn
    >>> module = InvertibleModule([(3, 4, 4)], block=invattn.InvertibleAttention(3))
    >>> (z,), log_det = module([torch.randn(5, 3, 4, 4)])
    >>> z.shape, log_det.shape
    (torch.Size([5, 3, 4, 4]), torch.Size([5]))
    """

    def __init__(
        self,
        dims_in: Iterable[tuple[int, ...]],
        dims_c: Iterable[tuple[int, ...]] | None = None,
        *,
        block: Bijection | Callable[..., Bijection],
        reverse: bool = False,
        shape: Sequence[int] | None = None,
        estimator: Estimator = "series",
        solver: Solver = "anderson",
    ) -> None:
        super().__init__(dims_in, dims_c)
        if len(self.dims_in) != 1:
            raise UsageError(f"[invattn.freia.InvertibleModule] expected one input, got {len(self.dims_in)}: {self.dims_in}.")
        if self.dims_c:
            raise UsageError(f"[invattn.freia.InvertibleModule] expected no conditions, got {self.dims_c}: a block does not look at them.")
        if not isinstance(block, Bijection) and callable(block):
            block = block(*(shape or self.dims_in[0]))
        self._adapt(block, reverse, shape, estimator, solver)

    def forward(
        self, x_or_z: Iterable[Tensor], c: Iterable[Tensor] | None = None, rev: bool = False, jac: bool = True
    ) -> tuple[tuple[Tensor], Tensor]:
        """The one output in a tuple, and log|det| of the direction taken; zeros for it where `jac` is False."""
        if c is not None and len(list(c)) > 0:
            raise UsageError("[invattn.freia.InvertibleModule] expected no conditions, got some: a block does not look at them.")
        (values,) = x_or_z
        result, log_det = self._run(values, undo=rev != self.reverse, log_det=jac)
        return (result,), values.new_zeros(values.shape[0]) if log_det is None else log_det

    def output_dims(self, input_dims: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        if len(input_dims) != 1:
            raise UsageError(f"[invattn.freia.InvertibleModule] expected one input, got {len(input_dims)}: {input_dims}.")
        return [tuple(input_dims[0])] if self.shape is not None else [self._shape_through(input_dims[0], undo=self.reverse)]
