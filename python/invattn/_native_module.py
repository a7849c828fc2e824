"""torch modules whose weights Python owns and with which the library computes.

A module holds parameters and buffers like any other, and a `Native`, the library's module of the same structure. Before every call the
tensors that have become others since the last one (by `load_state_dict(assign=True)`, `torch.func.functional_call`, `.to(device)`, a
parametrisation, ...) are given to it; those that changed in place are the same memory anyway.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from . import _build_info, _core
from ._errors import DataError, InvattnWarning, UsageError

#: Of what a pickle holds. Another number is refused.
_PICKLE_FORMAT = 1

_NO_TRANSFORMS = (
    "expected plain tensors, got one of torch.func (vmap, grad, jacrev, ...), whose transforms cannot see into the library. "
    "Pass the whole batch in place of vmap; use torch.autograd.grad, torch.autograd.functional or forward_log_det for derivatives."
)
_NO_DATA_PARALLEL = (
    "[{}] expected one process per device, got nn.DataParallel, whose threads would share one module. "
    "Use torch.nn.parallel.DistributedDataParallel."
)
_NO_GRAPH = (
    "invattn: a block runs in the library, outside of the compiled graph. "
    "Leave fullgraph=False; what stands around the block is compiled."
)
_INNER_HOOK = (
    "[{}] a hook on a part that runs inside the library is never called: "
    "the block around it is one operation. Put the hook on the block itself."
)


def eager(function: Callable) -> Callable:
    """Leaves a function, and what it calls, to the interpreter under torch.compile: torch.compiler.disable without importing the compiler."""
    function._torchdynamo_disable = True
    function._torchdynamo_disable_msg = _NO_GRAPH
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Without autocast: inverses, constants and log-determinants are computed in the type of the weights."""
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


class NativeModule(nn.Module):
    """Base of all modules of the package."""

    _native: _core.Native | None
    _inner: bool  # inside another module that runs as one operation
    _sealed: bool  # its structure is the library's, so that no part may be replaced

    def __init__(self) -> None:
        super().__init__()
        self.__dict__.update(_native=None, _inner=False, _sealed=False, _lock=threading.RLock(), _watched=None)

    # -- construction ---------------------------------------------------------------------------------------------------------------

    def _build(self) -> _core.Native:
        """A native module for the structure that this object describes, with weights of its own."""
        raise NotImplementedError

    def _adopt(self, native: _core.Native) -> None:
        """Takes the weights of a native module, and its parts as modules of their own, where there are none yet."""
        for name, tensor in native.parameters():
            if name not in self._parameters:
                self.register_parameter(name, nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad))
        for name, tensor in native.buffers():
            if name not in self._buffers:
                self.register_buffer(name, tensor)
        for name, child in native.children():
            if name not in self._modules:
                self.add_module(name, wrap(child))
        self._attach(native, self._lock)
        self.__dict__["_sealed"] = True

    def _attach(self, native: _core.Native, lock: threading.RLock) -> None:
        """Makes this object and those below it the owners of the weights of `native` and its parts."""
        if self._native is None or not self._native.same_as(native):
            entries = [[self, self._parameters, name, native.rebind, None] for name, _ in native.parameters()]
            entries += [[self, self._buffers, name, native.share_buffer, None] for name, _ in native.buffers()]
            self.__dict__["_entries"] = entries
        self.__dict__.update(_native=native, _lock=lock, _watched=None)
        for name, child in native.children():
            part = self._modules.get(name)
            if isinstance(part, NativeModule):
                if self._is_one_operation():
                    if part._has_hooks() and not part._inner:
                        warnings.warn(_INNER_HOOK.format(type(part).__name__), InvattnWarning, stacklevel=4)
                    part.__dict__["_inner"] = True
                part._attach(child, lock)

    def _is_one_operation(self) -> bool:
        """Whether the library runs all of it; else its parts are called one by one."""
        return True

    def _handle(self) -> _core.Native:
        """The native module with the weights of this moment."""
        if self._native is None:
            self._rebuild()
        self._sync()
        return self._native

    def _sync(self) -> None:
        watched = self._watched
        if watched is None:
            # Entries are the owner's own, [owner, its tensors, name, how to pass it on, what was passed on last]: a part that is called by
            # itself and the whole that it is in do not disagree about them.
            watched = [entry for module in self.modules() if isinstance(module, NativeModule) for entry in module.__dict__.get("_entries", ())]
            self.__dict__["_watched"] = watched
        for entry in watched:
            now = entry[1].get(entry[2])
            if now is None:
                now = getattr(entry[0], entry[2])  # a parametrisation computes it
            if now is not entry[4]:
                if not isinstance(now, torch.Tensor):
                    raise UsageError(f"[{type(self).__name__}] expected a tensor as '{entry[2]}', got {type(now).__name__}. Assign a parameter.")
                entry[3](entry[2], now)
                entry[4] = now

    # -- calls ----------------------------------------------------------------------------------------------------------------------

    @eager
    def _call(self, name: str, x: torch.Tensor, *arguments: Any, mask: Any = None, lengths: Any = None) -> Any:
        """The function of the native module with this name, at a batch; what is known beside x comes last."""
        if type(x) is not torch.Tensor and type(x) is not nn.Parameter:
            self._check_class(x)
        elif torch._C._functorch.is_functorch_wrapped_tensor(x):
            raise UsageError(f"[{type(self).__name__}] {_NO_TRANSFORMS}")
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            # In the type of the weights, as torch's own layers that ask for precision do.
            own = next((parameter.dtype for parameter in self.parameters()), torch.float32)
            with full_precision():
                return self._call(name, x.to(own) if x.is_floating_point() else x, *arguments, mask=mask, lengths=lengths)
        if mask is not None or lengths is not None:
            arguments = (*arguments, self._given(x, mask, lengths))
        with self._lock:
            native = self._native
            if native is None:
                native = self._handle()
            else:
                self._sync()
            self._check_device(x)
            return getattr(native, name)(x, *arguments)

    def _given(self, x: torch.Tensor, mask: Any, lengths: Any) -> _core.Given:
        name = type(self).__name__
        if mask is not None and lengths is not None:
            raise UsageError(f"[{name}] expected a mask or lengths, got both. Leave one of them out.")
        if mask is not None:
            if not isinstance(mask, torch.Tensor):
                raise UsageError(f"[{name}] expected a tensor as mask, (B, N) bool, got {type(mask).__name__}. Pass torch.tensor(mask).")
            return _core.Given(mask)
        if x.dim() != 3:
            raise UsageError(f"[{name}] expected sequences (B, N, C) with lengths, got shape {tuple(x.shape)}. Leave the lengths out.")
        try:
            lengths = torch.as_tensor(lengths)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"[{name}] expected lengths, one integer for each sample, got {lengths!r}. Correct them.") from error
        if not (lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool):
            lengths = lengths.to(torch.int64)
        return _core.Given.of_lengths(lengths, x.shape[1])

    def _check_class(self, x: Any) -> None:
        if not isinstance(x, torch.Tensor):
            raise UsageError(f"[{type(self).__name__}] expected a tensor, got {type(x).__name__}. Pass a batch (B, ...).")

    def _check_device(self, x: torch.Tensor) -> None:
        for entry in self._watched:
            if entry[4].device != x.device:
                raise UsageError(
                    f"[{type(self).__name__}] expected input and weights on one device, got the input on {x.device} and '{entry[2]}' on "
                    f"{entry[4].device}. Move one of them by .to(device)."
                )
            return

    # -- torch ----------------------------------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> NativeModule:
        super().train(mode)
        if self._native is not None:
            self._native.train(mode)
        return self

    def _apply(self, function: Callable, recurse: bool = True) -> NativeModule:
        super()._apply(function, recurse)
        if self._native is not None:
            self._native.train(self.training)  # forgets what was worked out from the weights
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.get("_sealed") and name in self.__dict__.get("_modules", ()) and value is not self._modules[name]:
            raise UsageError(
                f"[{type(self).__name__}] expected '{name}' to stay what it is, since the library computes with it, got another module. "
                "Change its weights, or build a new block."
            )
        super().__setattr__(name, value)

    def _replicate_for_data_parallel(self):
        raise UsageError(_NO_DATA_PARALLEL.format(type(self).__name__))

    def _has_hooks(self) -> bool:
        return bool(self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks)

    def _warn_of_hook(self) -> None:
        if self._inner:
            warnings.warn(_INNER_HOOK.format(type(self).__name__), InvattnWarning, stacklevel=3)

    def register_forward_hook(self, *arguments, **options):
        self._warn_of_hook()
        return super().register_forward_hook(*arguments, **options)

    def register_forward_pre_hook(self, *arguments, **options):
        self._warn_of_hook()
        return super().register_forward_pre_hook(*arguments, **options)

    def register_full_backward_hook(self, *arguments, **options):
        self._warn_of_hook()
        return super().register_full_backward_hook(*arguments, **options)

    def register_full_backward_pre_hook(self, *arguments, **options):
        self._warn_of_hook()
        return super().register_full_backward_pre_hook(*arguments, **options)

    def extra_repr(self) -> str:
        if self._native is None:
            return ""
        text = self._native.text()
        return text[text.index("(") + 1 : -1] if text.endswith(")") else ""

    # -- copies ---------------------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        for key in ("_native", "_lock", "_watched", "_entries"):
            state.pop(key, None)
        state["_pickled"] = (_PICKLE_FORMAT, _build_info.VERSION)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        version = state.pop("_pickled", (None, "an unknown version"))
        if version[0] != _PICKLE_FORMAT:
            raise DataError(
                f"[{type(self).__name__}] expected a pickle of format {_PICKLE_FORMAT} (invattn {_build_info.VERSION}), got one of "
                f"{version[0]} (invattn {version[1]}). Load it with that version and save the state_dict(), or the model by invattn.save()."
            )
        super().__setstate__(state)
        self.__dict__.update(_native=None, _lock=threading.RLock(), _watched=None)
        if not self._inner:  # else whoever it belongs to builds it
            self._rebuild()

    def _rebuild(self) -> None:
        with _generator_left_alone():
            native = self._build()
        self._attach(native, self._lock)
        native.train(self.training)


@contextlib.contextmanager
def _generator_left_alone() -> Iterator[None]:
    state = torch.random.get_rng_state()
    try:
        yield
    finally:
        torch.random.set_rng_state(state)


class Part(NativeModule):
    """A part of a module of the library: weights under their names."""

    def _build(self) -> _core.Native:
        raise UsageError("[Part] expected the module that this is a part of, got the part alone. Use or copy the whole.")


_CLASSES: dict[str, type[NativeModule]] = {}


def registered(kind: str) -> Callable[[type], type]:
    """The class for native modules of this kind."""

    def register(cls: type) -> type:
        _CLASSES[kind] = cls
        return cls

    return register


def wrap(native: _core.Native) -> NativeModule:
    """The module of the package for a native one."""
    cls = _CLASSES.get(native.kind, Part)
    if native.kind == "residual" and dict(native.children())["branch"].kind == "attention":
        cls = _CLASSES["invertible-attention"]
    module = cls.__new__(cls)
    NativeModule.__init__(module)
    if native.options is not None:
        module.__dict__["options"] = native.options
    module._adopt(native)
    return module
