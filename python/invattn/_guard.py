"""The guard over the invertible blocks of a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from . import _core
from ._core import Certificate
from ._errors import UsageError
from ._modules import InvertibleResidual
from ._native_module import NativeModule, eager, full_precision

__all__ = ["Guard"]


class Guard:
    """Keeps every guarded block of a network invertible while any trainer trains it.

    The penalty evaluates each guarded block once more on a part of the last batch and moves that block's weights only.

    Args:
        network: any torch.nn.Module that contains blocks of this package.
        options: fields of `GuardOptions`.

    >>> import torch, invattn
    >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), invattn.InvertibleAttention(8), torch.nn.Flatten(), torch.nn.LazyLinear(1))
    >>> images = torch.randn(16, 3, 8, 8)
    >>> _ = network(images)
    >>> guard = invattn.Guard(network, fraction=1)
    >>> optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    >>> for step in range(3):
    ...     loss = network(images).square().mean() + guard.penalty()  # the penalty after the forward pass
    ...     optimizer.zero_grad(); loss.backward(); optimizer.step()
    ...     guard.after_step()
    >>> [certificate] = guard.finish(network, [images], "16 random images")  # measures, scales where needed, certifies
    >>> certificate.contraction
    True
    """

    def __init__(self, network: nn.Module, options: _core.GuardOptions | None = None, **fields: Any) -> None:
        if not isinstance(network, nn.Module):
            raise UsageError(f"[Guard] expected a torch.nn.Module, got {type(network).__name__}. Pass the network itself.")
        options = _core.GuardOptions(**fields) if options is None else options.replace(**fields)
        self.options = options
        self._network = network
        modules = list(network.named_modules())
        for _, module in modules:
            if isinstance(module, NativeModule):
                module._handle()
        self._blocks = [(name, module) for name, module in modules if isinstance(module, InvertibleResidual)]
        if not self._blocks:
            raise UsageError(
                f"[Guard] expected a network with invertible blocks, got a {type(network).__name__} without any. "
                "Put an InvertibleAttention or InvertibleResidual into it."
            )
        self._native = _core.GuardedBlocks([(name, block._native) for name, block in self._blocks], options)

    def _sync(self) -> None:
        for _, block in self._blocks:
            block._handle()

    @property
    def names(self) -> list[str]:
        """Of the residual blocks in the network, in order."""
        return [name for name, _ in self._blocks]

    def __len__(self) -> int:
        """How many blocks are guarded."""
        return self._native.size()

    def due(self, step: int, batch: int) -> bool:
        """Whether a step looks at constants. The steps between are for the loss alone."""
        return self._native.due(step, batch)

    @eager
    def penalty(self, images: torch.Tensor | None = None, count: int = 0) -> torch.Tensor:
        """weight x the sum over blocks of mean relu(L - target)^2, differentiable, at the inputs of the last forward pass.

        Args:
            images: the numbers of the batch's samples within the training set, if known: each then keeps a vector of its own.
            count: the size of the training set; with it nothing waits for a GPU.
        """
        self._sync()
        with full_precision():
            return self._native.penalty(images, count)

    @property
    def last_largest(self) -> float:
        """The largest local constant that the last penalty saw, a lower estimate."""
        return self._native.last_largest()

    @eager
    def after_step(self) -> None:
        """Projects the weights of every residual block onto their constraints, guarded or not."""
        self._sync()
        self._native.after_step()

    @eager
    def hold(self) -> None:
        """After a step, where the penalty might come too late: scales each branch back whose constant was seen above its own."""
        self._sync()
        self._native.hold()

    @eager
    def finish(self, forward: Callable[[torch.Tensor], Any], batches: Iterable[torch.Tensor], data: str) -> list[Certificate]:
        """Measures the local constants on the batches, scales g where they are too large, and certifies each block.

        Args:
            forward: runs a batch through the network.
            batches: inputs of it.
            data: what they are, for the certificates.
        """
        self._sync()

        def run(x: torch.Tensor) -> None:
            with torch.no_grad():
                forward(x)

        with full_precision():
            return self._native.finish(run, list(batches), data)

    @property
    def constants(self) -> list[torch.Tensor]:
        """The local constants that `finish` measured, per guarded block, after its scaling."""
        return self._native.constants()

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What the guard has to remember for a training to go on to the same bits."""
        return dict(self._native.state())

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self._native.restore(dict(state))

    def __repr__(self) -> str:
        return f"Guard({len(self)} guarded of {len(self._blocks)} blocks, {self.options!r})"
