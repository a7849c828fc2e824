"""The blocks, branches and networks of the library as torch modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from . import _core
from ._core import Certificate, InverseReport, LogDet, LogProb
from ._errors import UsageError
from ._native_module import NativeModule, eager, full_precision, registered

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._fields import AttentionFields, ConvolutionFields, DetectorFields, FlowFields

__all__ = [
    "ActNorm",
    "Attention",
    "Bijection",
    "Branch",
    "Convolution",
    "Detector",
    "Flow",
    "InvertibleAttention",
    "InvertibleResidual",
    "Sequential",
    "Squeeze",
]


def _documented(options: type) -> Callable[[type], type]:
    """Adds the descriptions of the options to a class's docstring."""

    def add(cls: type) -> type:
        lines = [f"    {name} ({kind}, default {default!r}): {text}" for name, kind, default, text in options.fields()]
        cls.__doc__ = "\n".join([cls.__doc__.rstrip(), "", "Options:", *lines, ""])
        return cls

    return add


_SOLVERS = (_core.FixedPointOptions, _core.AndersonOptions, _core.NewtonKrylovOptions)
_ESTIMATORS = (_core.SeriesLogDet, _core.RouletteLogDet, _core.ExactLogDet)


def _chosen(choice: Any, options: dict[str, Any], classes: tuple[type, ...], named, what: str) -> Any:
    if isinstance(choice, str):
        choice = named(choice)
    elif not isinstance(choice, classes):
        names = ", ".join(cls.__name__ for cls in classes)
        raise UsageError(f"[invattn] expected {what} by name or one of {names}, got {type(choice).__name__}. Correct it.")
    return choice.replace(**options) if options else choice


def solver_options(solver: Any = "anderson", **options: Any) -> Any:
    """The options of a solver, from its name or from options, with the fields named replaced."""
    return _chosen(solver, options, _SOLVERS, _core.solver_options_named, "a solver")


def log_det_options(estimator: Any = "series", **options: Any) -> Any:
    """The options of an estimator of log-determinants, likewise."""
    return _chosen(estimator, options, _ESTIMATORS, _core.log_det_options_named, "an estimator of log-determinants")


def _known(mask: Any, lengths: Any) -> dict[str, Any]:
    """What there is of both, as keywords."""
    return {name: value for name, value in (("mask", mask), ("lengths", lengths)) if value is not None}


class Bijection(NativeModule):
    """A map with an inverse, on batches, each sample on its own.

    Of padded sequences or sets (B, N, C), `mask` (B, N), bool, says which positions are real, or `lengths` (B) how many are, in front. The
    others give nothing, take nothing, pass through unchanged and count nowhere: each sample is computed as it would be alone.
    """

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None, lengths: Any = None) -> torch.Tensor:
        """y. Under autocast it is computed in the type of the weights, and y has that type."""
        return self._call("forward", x, mask=mask, lengths=lengths)

    def forward_log_det(
        self, x: torch.Tensor, estimator: Any = "series", *, mask: torch.Tensor | None = None, lengths: Any = None, **options: Any
    ) -> tuple[torch.Tensor, LogDet]:
        """y and log|det dy/dx| per sample, in nats.

        Args:
            x: a batch.
            estimator: "series", "roulette" or "exact", or options of one (`SeriesLogDet`, `RouletteLogDet`, `ExactLogDet`).
            mask, lengths: of padded sequences, as above.
            options: fields of these options.
        """
        return self._call("forward_log_det", x, log_det_options(estimator, **options), mask=mask, lengths=lengths)

    def inverse(
        self, y: torch.Tensor, solver: Any = "anderson", *, mask: torch.Tensor | None = None, lengths: Any = None, **options: Any
    ) -> tuple[torch.Tensor, InverseReport]:
        """x with self(x) = y, and a report that says how far to believe it.

        Where gradients are on, x is differentiable once in y and in the weights, by the implicit function theorem; the backward pass solves
        a linear system per batch. Under `torch.no_grad()` nothing is recorded. Ctrl-C ends a long inverse.

        Args:
            y: a batch.
            solver: "anderson", "fixed-point" or "newton-krylov", or options of one (`AndersonOptions`, `FixedPointOptions`,
                `NewtonKrylovOptions`).
            mask, lengths: of padded sequences, as above.
            options: fields of these options.
        """
        return self._call("inverse", y, solver_options(solver, **options), mask=mask, lengths=lengths)

    @eager
    def project(self) -> None:
        """Makes the weights themselves satisfy their Lipschitz constraints. The function stays as it is, up to rounding."""
        with self._lock:
            self._handle().project()

    @eager
    def certificates(self) -> dict[str, Certificate]:
        """What is promised of each residual block inside, by name ("" for the block itself). Those that have lapsed are left out."""
        with self._lock:
            return {name: certificate for name, certificate, current in self._handle().certificates() if current}

    def describe(self) -> str:
        """The options that made this object, as JSON."""
        return self._handle().describe()


class Branch(NativeModule):
    """The g of y = x + g(x). By itself an ordinary layer."""

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None, lengths: Any = None) -> torch.Tensor:
        """g(x); 0 at padding, of which `mask` or `lengths` tell as in a `Bijection`."""
        return self._call("forward", x, mask=mask, lengths=lengths)

    def describe(self) -> str:
        """The options that made this object, as JSON."""
        return self._handle().describe()


def _attention_options(channels: int, preset: str | None, options: dict[str, Any]) -> _core.AttentionOptions:
    if preset is None:
        return _core.AttentionOptions(channels=channels, **options)
    kind = options.pop("kind", "concatenation")
    return _core.attention_preset(preset, kind, channels).replace(**options)


@registered("attention")
@_documented(_core.AttentionOptions)
class Attention(Branch):
    """Attention over the positions of an image (B, C, H, W), a sequence or a set (B, N, C): by itself, or as the branch of an invertible block.

    Args:
        channels: C.
        preset: "plain", "paper", "published-code", "guarded" or "strict": sets the other options.
        options: fields of `AttentionOptions`.

    >>> import torch, invattn
    >>> plain = invattn.Attention(8, preset="plain", kind="gaussian")
    >>> plain(torch.randn(1, 8, 4, 4)).shape
    torch.Size([1, 8, 4, 4])
    """

    options: _core.AttentionOptions

    def __init__(self, channels: int, *, preset: str | None = None, **options: Unpack[AttentionFields]) -> None:
        super().__init__()
        self.options = _attention_options(channels, preset, options)
        self._adopt(self._build())

    def _build(self) -> _core.Native:
        return _core.Native.attention(self.options)

    @eager
    def response(self, x: torch.Tensor, factor: int = 1) -> torch.Tensor:
        """(B, P, P): how much each cell of factor x factor positions takes from each. Without gradients."""
        with torch.no_grad():
            return self._call("response", x, factor)


@registered("convolution")
@_documented(_core.ConvolutionOptions)
class Convolution(Branch):
    """The branch of an i-ResNet: convolutions whose spectral norms multiply to the constant.

    Args:
        channels, height, width: of the images; the spectral norms belong to their size.
        options: fields of `ConvolutionOptions`.
    """

    options: _core.ConvolutionOptions

    def __init__(self, channels: int, height: int, width: int, **options: Unpack[ConvolutionFields]) -> None:
        super().__init__()
        self.options = _core.ConvolutionOptions(channels=channels, height=height, width=width, **options)
        self._adopt(self._build())

    def _build(self) -> _core.Native:
        return _core.Native.convolution(self.options)


@registered("residual")
class InvertibleResidual(Bijection):
    """y = x + g(x) over a branch g, with an inverse and a log-determinant.

    Args:
        branch: `Attention`, `Convolution`, or any torch.nn.Module that maps (B, ...) to the same shape, sample by sample. What a module
            written in Python promises is what a `Guard` holds and measures. Of padded sequences it is given the real positions alone, (S, n, C)
            of S samples that have n each.
        policy: of a branch written in Python: "guarded", or "paper" where something else keeps it a contraction and nothing is promised.
        constant: of a branch written in Python: what its Lipschitz constant is held under.

    >>> import torch, invattn
    >>> from torch import nn
    >>> g = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    >>> block = invattn.InvertibleResidual(g)
    >>> guard = invattn.Guard(block)
    >>> y = block(torch.randn(16, 2))
    """

    branch: nn.Module

    def __init__(self, branch: nn.Module, *, policy: str | None = None, constant: float | None = None) -> None:
        super().__init__()
        if not isinstance(branch, nn.Module) or isinstance(branch, Bijection):
            raise UsageError(
                f"[InvertibleResidual] expected a branch g, a torch.nn.Module, got {type(branch).__name__}. "
                "A bijection is not one: put it into a Sequential."
            )
        if isinstance(branch, Branch):
            if policy is not None or constant is not None:
                raise UsageError(
                    "[InvertibleResidual] expected policy and constant for branches written in Python only, got them for one of the "
                    "library, which has its own. Set them there."
                )
            self.branch = branch
        else:
            self.__dict__["_policy"] = ("guarded" if policy is None else policy, 0.9 if constant is None else constant)
            self.branch = branch
            first = next(branch.parameters(), torch.empty(()))
            self.register_buffer("scale", torch.ones((), dtype=first.dtype, device=first.device))
        self._adopt(self._build())

    def _build(self) -> _core.Native:
        if isinstance(self.branch, Branch):
            return _core.Native.residual(self.branch._handle())
        policy, constant = self._policy
        scale = self.scale.detach().clone()
        return _core.Native.residual(_core.Native.python_branch(self.branch, policy, constant, scale))

    def _attach(self, native, lock) -> None:
        is_new = self._native is None or not self._native.same_as(native)
        super()._attach(native, lock)
        python_branch = None
        if "scale" in self._buffers:
            python_branch = dict(native.children())["branch"]
            if is_new:
                self._entries.append([self, self._buffers, "scale", python_branch.share_buffer, None])
        self.__dict__["_python_branch"] = python_branch
        measured = self.__dict__.pop("_measured", None)
        if measured is not None:
            native.restore(measured)

    def _sync(self) -> None:
        super()._sync()
        if self._python_branch is not None:
            self._python_branch.refresh(list(self.branch.named_parameters()))

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_python_branch", None)
        if self._native is not None:
            state["_measured"] = self._native.measured()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__["_python_branch"] = None
        super().__setstate__(state)

    @property
    def certificate(self) -> Certificate:
        """What is promised of g: what the weights alone promise, or a measurement of these very weights."""
        return self._certificate()

    @eager
    def _certificate(self) -> Certificate:
        with self._lock:
            return self._handle().certificate()

    def extra_repr(self) -> str:
        return ""


@registered("invertible-attention")
@_documented(_core.AttentionOptions)
class InvertibleAttention(InvertibleResidual):
    """An invertible attention block on images (B, C, H, W), sequences and sets (B, N, C): `InvertibleResidual` over `Attention`.

    Args:
        channels: C.
        preset: "paper", "published-code", "guarded" or "strict": sets the other options.
        options: fields of `AttentionOptions`.

    >>> import torch, invattn
    >>> block = invattn.InvertibleAttention(8, kind="dot-product")
    >>> x = torch.randn(2, 8, 6, 6)
    >>> y, log_det = block.forward_log_det(x, "exact")
    >>> back, report = block.inverse(y, tolerance=1e-6)
    >>> report.usable, bool((back - x).abs().max() < 1e-4)
    (True, True)
    >>> invattn.InvertibleAttention(8, kind="dot-prodct")
    Traceback (most recent call last):
    ...
    invattn.UsageError: [AttentionOptions, kind] expected a kind of attention gaussian, embedded-gaussian, dot-product, concatenation or distance (did you mean dot-product?), got 'dot-prodct'.
    """

    branch: Attention

    def __init__(self, channels: int, *, preset: str | None = None, **options: Unpack[AttentionFields]) -> None:
        super().__init__(Attention(channels, preset=preset, **options))


@registered("sequential")
class Sequential(Bijection):
    """Bijections one after another. Each is called as a module of its own, so that its hooks run."""

    def __init__(self, *parts: Bijection) -> None:
        super().__init__()
        for part in parts:
            self.append(part)

    def append(self, part: Bijection) -> Sequential:
        if not isinstance(part, Bijection):
            raise UsageError(f"[Sequential] expected a bijection, got {type(part).__name__}. Wrap a branch by InvertibleResidual.")
        self.add_module(str(len(self._modules)), part)
        return self

    def __iter__(self) -> Iterator[Bijection]:
        return iter(self._modules.values())

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, index: int) -> Bijection:
        return list(self._modules.values())[index]

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None, lengths: Any = None) -> torch.Tensor:
        known = _known(mask, lengths)
        for part in self:
            x = part(x, **known)
        return x

    def forward_log_det(
        self, x: torch.Tensor, estimator: Any = "series", *, mask: torch.Tensor | None = None, lengths: Any = None, **options: Any
    ) -> tuple[torch.Tensor, LogDet]:
        return self._forward_log_det(x, log_det_options(estimator, **options), _known(mask, lengths))

    @eager
    def _forward_log_det(self, x: torch.Tensor, options: Any, known: dict[str, Any]) -> tuple[torch.Tensor, LogDet]:
        if len(self) == 0:
            return x, _core.no_log_det(x.new_zeros(x.shape[:1]), options)
        parts = []
        for index, part in enumerate(self):
            x, log_det = part.forward_log_det(x, _core.log_det_options_for_part(options, index), **known)
            parts.append(log_det)
        return x, _core.chained(parts)

    def inverse(
        self, y: torch.Tensor, solver: Any = "anderson", *, mask: torch.Tensor | None = None, lengths: Any = None, **options: Any
    ) -> tuple[torch.Tensor, InverseReport]:
        chosen = solver_options(solver, **options)
        known = _known(mask, lengths)
        reports = []
        for part in reversed(list(self)):
            y, report = part.inverse(y, chosen, **known)
            reports.append(report)
        return y, self._combined(y, reports)

    @eager
    def _combined(self, y: torch.Tensor, reports: list[InverseReport]) -> InverseReport:
        return InverseReport.combine(reports) if reports else InverseReport.exact(len(y), "identity")

    def _build(self) -> _core.Native:
        return _core.Native.sequential([part._handle() for part in self])

    def _handle(self) -> _core.Native:
        # Of the parts as they are now; inside of a flow it is the flow's.
        return super()._handle() if self._inner and self._native is not None else self._build()

    def _rebuild(self) -> None:
        """There is nothing to keep: the parts have what there is."""

    def _is_one_operation(self) -> bool:
        return self._inner

    def extra_repr(self) -> str:
        return ""


@registered("squeeze")
class Squeeze(Bijection):
    """(B, C, H, W) -> (B, C f^2, H / f, W / f): blocks of f x f pixels become channels."""

    options: _core.SqueezeOptions

    def __init__(self, factor: int = 2) -> None:
        super().__init__()
        self.options = _core.SqueezeOptions(factor=factor)
        self._adopt(self._build())

    def _build(self) -> _core.Native:
        return _core.Native.squeeze(self.options)

    def _check_device(self, x: torch.Tensor) -> None:
        """It has no weights."""


class _StartsFromData(Bijection):
    """A bijection whose scales and shifts are set by the first batch that it sees in training mode."""

    _started: bool

    def _start_together(self, x: torch.Tensor, **known: Any) -> None:
        """With several processes all start from the first batch of the first one: each would else have scales of its own, for good."""
        if self._started or not self.training:
            return
        distributed = torch.distributed
        if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
            return
        norms = [module for module in self.modules() if isinstance(module, ActNorm)]
        if any(norm.started.item() == 0 for norm in norms):
            with torch.no_grad():
                self._call("forward", x, **known)
                for norm in norms:
                    for tensor in (norm.shift, norm.log_scale, norm.started):
                        distributed.broadcast(tensor.data, src=0)
        self.__dict__["_started"] = True

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None, lengths: Any = None) -> torch.Tensor:
        self._start_together(x, mask=mask, lengths=lengths)
        return super().forward(x, mask=mask, lengths=lengths)

    def forward_log_det(
        self, x: torch.Tensor, estimator: Any = "series", *, mask: torch.Tensor | None = None, lengths: Any = None, **options: Any
    ) -> tuple[torch.Tensor, LogDet]:
        self._start_together(x, mask=mask, lengths=lengths)
        return super().forward_log_det(x, estimator, mask=mask, lengths=lengths, **options)


@registered("actnorm")
class ActNorm(_StartsFromData):
    """y = (x + shift) exp(log_scale) per channel, started by the first batch in training mode so that y has mean 0 and variance 1.

    Images (B, C, H, W) or sequences and sets (B, N, C), of which padding neither counts nor changes.

    Under torch.distributed the first batch of rank 0 starts all ranks.

    Args:
        channels: C.
        follow: 0: scale and shift are learned; else they follow the batches, and keep this much of themselves with each.
    """

    options: _core.ActNormOptions
    shift: torch.Tensor
    log_scale: torch.Tensor
    started: torch.Tensor
    _started = False

    def __init__(self, channels: int, follow: float = 0) -> None:
        super().__init__()
        self.options = _core.ActNormOptions(channels=channels, follow=follow)
        self._adopt(self._build())

    def _build(self) -> _core.Native:
        return _core.Native.actnorm(self.options)


@registered("flow")
@_documented(_core.FlowOptions)
class Flow(_StartsFromData):
    """A normalizing flow: a multi-scale i-ResNet with attention blocks, and a prior on what comes out.

    Args:
        preset: "paper", "improved", "plane" or "residual-flow": sets the other options.
        options: fields of `FlowOptions`.

    >>> import torch, invattn
    >>> flow = invattn.Flow(channels=2, height=4, width=4, pixels="none", blocks=[1], hidden=8, attention="dot-product")
    >>> flow.log_prob(torch.randn(3, 2, 4, 4)).value.shape
    torch.Size([3])
    >>> x, report = flow.eval().sample(2, seed=1)
    """

    options: _core.FlowOptions
    _started = False

    def __init__(self, preset: str | None = None, **options: Unpack[FlowFields]) -> None:
        super().__init__()
        self.options = _core.FlowOptions(**options) if preset is None else _core.flow_preset(preset).replace(**options)
        self._adopt(self._build())

    def _build(self) -> _core.Native:
        return _core.Native.flow(self.options)

    def log_prob(self, x: torch.Tensor, estimator: Any = "series", **options: Any) -> LogProb:
        """log p(x) of each sample, in nats, of the density over x as it is given."""
        self._start_together(x)
        return self._call("log_prob", x, log_det_options(estimator, **options))

    @eager
    def sample(
        self, count: int, temperature: float = 1.0, seed: int = 0, solver: Any = "anderson", **options: Any
    ) -> tuple[torch.Tensor, InverseReport]:
        """x of latents drawn from the prior, whose standard deviations are multiplied by `temperature`, and the report of the inverse.

        A sample that the solver did not find is NaN throughout. The same seed draws the same latents on every device. Differentiable as
        `inverse` is.
        """
        with self._lock, full_precision():
            return self._handle().sample(count, temperature, seed, solver_options(solver, **options))

    @eager
    def draw_latents(self, count: int, temperature: float = 1.0, seed: int = 0) -> torch.Tensor:
        """(count, D, 1, 1): what `sample` inverts."""
        with self._lock:
            return self._handle().draw_latents(count, temperature, seed)


@registered("detector")
@_documented(_core.DetectorOptions)
class Detector(NativeModule):
    """The paper's network for camouflaged objects: grey levels (B, 3, H, W), 0..255, to maps (B, 1, H, W), before the sigmoid.

    Args:
        options: fields of `DetectorOptions`.
    """

    options: _core.DetectorOptions

    def __init__(self, **options: Unpack[DetectorFields]) -> None:
        super().__init__()
        self.options = _core.DetectorOptions(**options)
        self._adopt(self._build())

    def _build(self) -> _core.Native:
        return _core.Native.detector(self.options)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self._call("forward", pixels)

    @eager
    def certificates(self) -> dict[str, Certificate]:
        """What is promised of each invertible block, by name. Those that have lapsed are left out."""
        with self._lock:
            return {name: certificate for name, certificate, current in self._handle().certificates() if current}
