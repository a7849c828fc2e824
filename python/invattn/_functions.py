"""Functions over blocks: files, constants, solvers by themselves, kernels."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import _core
from ._core import InverseReport, LocalConstants
from ._errors import UsageError
from ._modules import Bijection, Branch, Detector, InvertibleResidual, solver_options
from ._native_module import eager, wrap

__all__ = ["chosen_kernels", "kernels", "load", "local_constants", "save", "solve", "use_kernels"]


def load(path: str | os.PathLike[str]) -> Bijection | Detector:
    """The model that `save` or the tool `invattn` stored, in evaluation mode, on the CPU and in the type of its weights."""
    return wrap(_core.load(os.fspath(path))).eval()


@eager
def save(path: str | os.PathLike[str], model: Bijection | Detector) -> None:
    """Writes weights, options and certificates to one safetensors file, which the tool and the C++ library load as well.

    Weights are projected onto their constraints first. The file is written as a whole or not at all.
    """
    if not isinstance(model, Bijection | Detector):
        raise UsageError(
            f"[save] expected a bijection or a detector of this package, got {type(model).__name__}. "
            "Save a network of your own by torch.save(network.state_dict(), path)."
        )
    with model._lock:
        _core.save(os.fspath(path), model._handle())


@eager
def local_constants(
    block: InvertibleResidual | Branch, x: torch.Tensor, *, mask: torch.Tensor | None = None, lengths: Any = None, **options: Any
) -> LocalConstants:
    """The local Lipschitz constant of the branch at each sample of x: the spectral norm of its Jacobian.

    Args:
        block: a residual block or one of the library's branches.
        x: a batch.
        mask, lengths: of padded sequences, as for the block.
        options: fields of `LocalConstantOptions`.
    """
    if not isinstance(block, InvertibleResidual | Branch):
        raise UsageError(f"[local_constants] expected a residual block or a branch, got {type(block).__name__}. Pass one of its blocks.")
    return block._call("local_constants", x, _core.LocalConstantOptions(**options), mask=mask, lengths=lengths)


@eager
def solve(
    g: Callable[[torch.Tensor], torch.Tensor], y: torch.Tensor, solver: Any = "anderson", **options: Any
) -> tuple[torch.Tensor, InverseReport]:
    """x with x + g(x) = y for any function g of batches, each sample on its own. Records no gradients.

    >>> import torch, invattn
    >>> x, report = invattn.solve(lambda x: 0.5 * x.sin(), torch.ones(2, 3))
    >>> report.usable
    True
    """
    return _core.solve(g, y, solver_options(solver, **options))


def use_kernels(choice: str) -> None:
    """"auto" (the default), "reference" (plain ATen operations) or "fast" (an error where no kernel fits), for the whole process."""
    _core.use_kernels(choice)


def chosen_kernels() -> str:
    """What `use_kernels` chose."""
    return _core.chosen_kernels()


@contextlib.contextmanager
def kernels(choice: str) -> Iterator[None]:
    """`use_kernels` for a with block."""
    before = chosen_kernels()
    use_kernels(choice)
    try:
        yield
    finally:
        use_kernels(before)
