"""Made by scripts/python_stubs.py from the binding."""
from collections.abc import Sequence
from typing import Any, Literal, TypedDict

class LocalConstantFields(TypedDict, total=False):
    tolerance: float
    max_iterations: int
    seed: int

class AttentionFields(TypedDict, total=False):
    kind: Literal["gaussian", "embedded-gaussian", "dot-product", "concatenation", "distance"]
    normalization: Literal["columns", "rows", "all", "count", "balanced"]
    phi: Literal["exp", "elu+1", "softplus", "relu", "elu", "identity"]
    bottleneck: int
    heads: int
    relative: bool
    mass: float
    value_constant: float
    output_constant: float
    response_constant: float
    score_scale: float
    score_shift: float
    output: Literal["linear", "gate", "none"]
    start: Literal["uniform", "identity", "contraction"]
    bias: bool
    policy: Literal["none", "paper", "guarded", "strict", "product"]
    constant: float
    radius: float
    outside: Literal["report", "throw", "clip"]

class ConvolutionFields(TypedDict, total=False):
    hidden: int
    kernel: int
    layers: int
    activation: Literal["elu", "lipswish", "clipswish"]
    constant: float
    tolerance: float
    iterations: int

class ActNormFields(TypedDict, total=False):
    follow: float

class SqueezeFields(TypedDict, total=False):
    factor: int

class FlowFields(TypedDict, total=False):
    channels: int
    height: int
    width: int
    pixels: Literal["none", "centre", "logit"]
    alpha: float
    squeeze: bool
    blocks: Sequence[int]
    split: bool
    hidden: int
    kernel: int
    layers: int
    activation: Literal["elu", "lipswish", "clipswish"]
    constant: float
    tolerance: float
    iterations: int
    actnorm: bool
    attention: Literal["none", "gaussian", "embedded-gaussian", "dot-product", "concatenation", "distance"]
    attention_preset: Literal["plain", "paper", "published-code", "guarded", "strict"]
    attention_heads: int
    attention_blocks: Sequence[int]
    attention_radius: float
    attention_follow: float
    dense_blocks: int
    dense_hidden: int
    prior: Literal["learned", "standard"]
    recompute: bool

class ResNetFields(TypedDict, total=False):
    width: int
    blocks: Sequence[int]
    stride_in: Literal["first", "second"]
    batch_norm_eps: float
    mean: Sequence[float]
    deviation: Sequence[float]
    classes: int

class DetectorFields(TypedDict, total=False):
    variant: Literal["base", "gaussian", "embedded-gaussian", "dot-product", "concatenation", "distance", "invertible-gaussian", "invertible-embedded-gaussian", "invertible-dot-product", "invertible-concatenation", "invertible-distance"]
    preset: Literal["plain", "paper", "published-code", "guarded", "strict"]
    heads: int
    size: int
    antialias: bool
    backbone: dict[str, Any]
    channels: int
    dilations: Sequence[int]
    last_dilations: Sequence[int]
    reduction: int

class GuardFields(TypedDict, total=False):
    target: float
    weight: float
    fraction: float
    every: int
    iterations: int
    margin: float
    measure: dict[str, Any]

class FixedPointFields(TypedDict, total=False):
    tolerance: float
    max_iterations: int
    trace: bool
    on_failure: Literal["report", "throw"]

class AndersonFields(TypedDict, total=False):
    tolerance: float
    max_iterations: int
    trace: bool
    on_failure: Literal["report", "throw"]
    memory: int
    mixing: float
    regularization: float

class NewtonKrylovFields(TypedDict, total=False):
    tolerance: float
    max_iterations: int
    trace: bool
    on_failure: Literal["report", "throw"]
    krylov: int
    forcing: float

class SeriesLogDetFields(TypedDict, total=False):
    terms: int
    guarded_terms: int
    probes: int
    probe: Literal["rademacher", "gaussian"]
    gradient: Literal["neumann", "series"]
    seed: int

class RouletteLogDetFields(TypedDict, total=False):
    minimum_terms: int
    continuation: float
    stride: int
    guarded_terms: int
    terms: int
    probes: int
    probe: Literal["rademacher", "gaussian"]
    gradient: Literal["neumann", "series"]
    seed: int

class ExactLogDetFields(TypedDict, total=False):
    max_dimension: int

class CertificateFields(TypedDict, total=False):
    policy: Literal["none", "paper", "guarded", "strict", "product"]
    basis: Literal["nothing", "measured", "proved"]
    constant: float
    domain_radius: float
    positions: int
    data: str
    samples: int
    scale: float
    weights: str
