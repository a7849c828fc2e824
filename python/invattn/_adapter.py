"""What the adapters to other libraries share: both directions of a bijection with log-determinants, on samples as the others hold them."""

from __future__ import annotations

import importlib
import importlib.util
import math
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Union

import torch
from torch import Tensor

from invattn import (
    AndersonOptions,
    Bijection,
    ExactLogDet,
    FixedPointOptions,
    InvattnWarning,
    InverseReport,
    NewtonKrylovOptions,
    RouletteLogDet,
    SeriesLogDet,
    UsageError,
)
from invattn._modules import log_det_options, solver_options

Estimator = Union[str, SeriesLogDet, RouletteLogDet, ExactLogDet]
Solver = Union[str, AndersonOptions, FixedPointOptions, NewtonKrylovOptions]


class MissingPackage(UsageError, ImportError):
    """The library that an adapter is for is not installed. Both a UsageError and an ImportError."""


def other_library(package: str, module: str, extra: str, needs: str) -> ModuleType:
    """The `module` of another library's `package`, or an error that says what to install.

    `needs` is a name that the module has: a file of ours with the same name, found first on a wrong ``sys.path``, has it not.
    """
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != package:
            raise  # the library is there, something that it needs is not: its own message says what
        shadow = importlib.util.find_spec(package) if error.name != package else None
        if shadow is not None:
            raise UsageError(_shadowed(package, extra, shadow.origin)) from error
        raise MissingPackage(
            f"[invattn.{extra}] expected the package {package}, got none. Install it with pip install invattn[{extra}]."
        ) from None
    if not hasattr(found, needs):
        raise UsageError(_shadowed(package, extra, getattr(found, "__file__", None)))
    return found


def _shadowed(package: str, extra: str, origin: str | None) -> str:
    return (
        f"[invattn.{extra}] expected the library {package}, got another module of that name ({origin}). "
        "Take the folder that holds it out of sys.path."
    )


class Adapter:
    """A bijection with its settings; the classes of the adapters derive from it and from a class of the other library.

    To *undo* is block.inverse, its opposite is block(x). Samples are shaped as the block takes them, or flat with `shape` set.
    """

    block: Bijection
    reverse: bool  #: whether the forward direction of the other library undoes the block
    shape: tuple[int, ...] | None  #: what a flat sample becomes for the block
    estimator: Estimator  #: of log-determinants; may be set at any time
    solver: Solver  #: of inverses; may be set at any time
    last_report: InverseReport | None  #: of the last inverse

    def _adapt(self, block: Bijection, reverse: bool, shape: Sequence[int] | None, estimator: Estimator, solver: Solver) -> None:
        if not isinstance(block, Bijection):
            raise UsageError(
                f"[{_origin(self)}] expected a bijection of invattn (InvertibleAttention, InvertibleResidual, Sequential, Flow, ...), "
                f"got {type(block).__name__}. A network of your own becomes one by InvertibleResidual(network)."
            )
        self.block = block
        self.reverse = bool(reverse)
        self.shape = None if shape is None else tuple(int(size) for size in shape)
        self.estimator = log_det_options(estimator)
        self.solver = solver_options(solver)
        self.last_report = None
        self._shapes: dict[tuple[tuple[int, ...], bool], tuple[int, ...]] = {}

    def _run(self, values: Tensor, undo: bool, event_dim: int | None = None, log_det: bool = True) -> tuple[Tensor, Tensor | None]:
        """The block or its inverse, and log|det| of the derivative of what was done; any batch dimensions before the last `event_dim`."""
        if self.shape is not None:
            event_dim = 1
        elif event_dim is None:
            event_dim = values.dim() - 1
        if values.dim() < event_dim or event_dim < 1:
            wanted = "(..., C, H, W)" if event_dim == 3 else "(B, ...)"
            raise UsageError(f"[{_origin(self)}] expected samples {wanted}, got shape {tuple(values.shape)}.")
        batch, event = values.shape[: values.dim() - event_dim], tuple(values.shape[values.dim() - event_dim :])
        samples = values.reshape(math.prod(batch), *self._unflat(event, undo))
        determinant = None
        if undo:
            result = self._undo(samples)
            if log_det:
                determinant = -self.block.forward_log_det(result, self.estimator)[1].value
        elif log_det:
            result, found = self.block.forward_log_det(samples, self.estimator)
            determinant = found.value
        else:
            result = self.block(samples)
        result = result.reshape(*batch, *(event if self.shape is not None else result.shape[1:]))
        return result, None if determinant is None else determinant.reshape(batch)

    def _undo(self, y: Tensor) -> Tensor:
        x, report = self.block.inverse(y, self.solver)
        self.last_report = report
        if not report.usable:
            warnings.warn(
                f"[{_origin(self)}] expected every sample to be undone, got: {report.brief()}. See last_report; a solver with "
                "on_failure='throw' stops instead, a Guard keeps blocks invertible while they train.",
                InvattnWarning,
                stacklevel=4,
            )
        return x

    def _unflat(self, event: tuple[int, ...], undo: bool) -> tuple[int, ...]:
        """The shape in which the block sees a sample."""
        if self.shape is None:
            return event
        if event != (math.prod(self.shape),):
            raise UsageError(
                f"[{_origin(self)}] expected flat samples of {math.prod(self.shape)} numbers, for shape={self.shape}, got shape {event}."
            )
        return self._shape_through(self.shape, undo=False) if undo else self.shape

    def _shape_through(self, shape: Sequence[int], undo: bool) -> tuple[int, ...]:
        """The shape of what samples of this shape become: found with one of zeros, in evaluation mode, so that nothing changes."""
        key = (tuple(int(size) for size in shape), undo)
        if key not in self._shapes:
            modes = [(module, module.training) for module in self.block.modules()]
            like = next((weight for weight in self.block.parameters() if weight.is_floating_point()), torch.zeros(()))
            zeros = torch.zeros((1, *key[0]), dtype=like.dtype, device=like.device)
            try:
                self.block.eval()
                with torch.no_grad():
                    result = self.block.inverse(zeros)[0] if undo else self.block(zeros)
            finally:
                for module, training in modes:  # parts come after what they are in
                    if module.training != training:
                        module.train(training)
            self._shapes[key] = tuple(result.shape[1:])
        return self._shapes[key]

    def _refuse_context(self, context: Any, ignored: bool) -> None:
        if context is None or ignored:
            return
        got = f"one of shape {tuple(context.shape)}" if isinstance(context, Tensor) else type(context).__name__
        raise UsageError(
            f"[{_origin(self)}] expected no context, got {got}: a block does not look at it. "
            "Give ignore_context=True where other parts of the model do."
        )

    def _settings(self) -> str:
        shape = "" if self.shape is None else f"shape={self.shape}, "
        return f"{shape}reverse={self.reverse}, estimator={self.estimator!r}, solver={self.solver!r}"

    def _state(self, state: dict[str, Any]) -> dict[str, Any]:
        """What is copied and pickled: not the report of an inverse that was."""
        return {**state, "last_report": None}


class ModuleAdapter(Adapter):
    """An adapter whose other base is a torch.nn.Module."""

    def extra_repr(self) -> str:
        return self._settings()

    def __getstate__(self) -> dict[str, Any]:
        return self._state(self.__dict__)


def _origin(adapter: Adapter) -> str:
    return f"{type(adapter).__module__}.{type(adapter).__name__}"
