"""Invertible attention: attention blocks y = x + g(x) that can be undone, as torch modules.

>>> import torch, invattn
>>> block = invattn.InvertibleAttention(channels=4, kind="concatenation")
>>> y = block(torch.randn(2, 4, 8, 8))
>>> x, report = block.inverse(y)
>>> report.usable
True
"""

import functools
import importlib
import os
from typing import TYPE_CHECKING

import torch

try:
    from . import _build_info
except ImportError:
    raise ImportError(
        "[invattn] expected the installed package, got its sources, which have no compiled part. Run `pip install .` at the top of the "
        "clone, and Python from another folder than `python/`."
    ) from None
from ._errors import DataError, Error, InvattnWarning, NotConvergedError, UsageError

if torch.__version__.split("+")[0].rsplit(".", 1)[0] != _build_info.TORCH_RELEASE:
    raise ImportError(
        f"[invattn] expected torch {_build_info.TORCH_RELEASE}, which this package was built for, got {torch.__version__}. "
        f"Install torch=={_build_info.TORCH_RELEASE}.*, or build the package again from its sources (pip install .)."
    )

from . import metrics
from ._core import (
    ActNormOptions,
    AndersonOptions,
    AttentionOptions,
    Certificate,
    ConvolutionOptions,
    DetectorOptions,
    ExactLogDet,
    FixedPointOptions,
    FlowOptions,
    GuardOptions,
    InverseReport,
    LocalConstantOptions,
    LocalConstants,
    LogDet,
    LogProb,
    NewtonKrylovOptions,
    ResNetOptions,
    RouletteLogDet,
    SeriesLogDet,
    SqueezeOptions,
    attention_preset,
    flow_preset,
)
from ._functions import chosen_kernels, kernels, load, local_constants, save, solve, use_kernels
from ._guard import Guard
from ._modules import (
    ActNorm,
    Attention,
    Bijection,
    Branch,
    Convolution,
    Detector,
    Flow,
    InvertibleAttention,
    InvertibleResidual,
    Sequential,
    Squeeze,
)

__version__ = _build_info.VERSION

# OpenMP's threads do not survive a fork, and a child that asked for them would wait for ever: it works with one, as torch's own data loaders do.
os.register_at_fork(after_in_child=functools.partial(torch.set_num_threads, 1))

#: Modules for other libraries, imported when they are asked for.
_ADAPTERS = ("distributions", "freia", "nflows", "normflows", "zuko")

if TYPE_CHECKING:
    from . import distributions, freia, nflows, normflows, zuko


def __getattr__(name: str):
    if name in _ADAPTERS:
        return importlib.import_module(f"invattn.{name}")
    raise AttributeError(f"module 'invattn' has no attribute {name!r}")


__all__ = [
    "ActNorm",
    "ActNormOptions",
    "AndersonOptions",
    "Attention",
    "AttentionOptions",
    "Bijection",
    "Branch",
    "Certificate",
    "Convolution",
    "ConvolutionOptions",
    "DataError",
    "Detector",
    "DetectorOptions",
    "Error",
    "ExactLogDet",
    "FixedPointOptions",
    "Flow",
    "FlowOptions",
    "Guard",
    "GuardOptions",
    "InvattnWarning",
    "InverseReport",
    "InvertibleAttention",
    "InvertibleResidual",
    "LocalConstantOptions",
    "LocalConstants",
    "LogDet",
    "LogProb",
    "NewtonKrylovOptions",
    "NotConvergedError",
    "ResNetOptions",
    "RouletteLogDet",
    "Sequential",
    "SeriesLogDet",
    "Squeeze",
    "SqueezeOptions",
    "UsageError",
    "__version__",
    "attention_preset",
    "chosen_kernels",
    "flow_preset",
    "kernels",
    "load",
    "local_constants",
    "metrics",
    "save",
    "solve",
    "use_kernels",
]

for _name in __all__:  # where they are to be found, in messages and pickles
    _public = globals()[_name]
    if getattr(_public, "__module__", "").startswith("invattn._") and _public.__module__ != "invattn._core":
        _public.__module__ = "invattn"
del _name, _public
