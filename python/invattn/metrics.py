"""How near images come to their references, and how well maps find objects: of numpy arrays and of tensors.

A function returns what it was given: an array for arrays, a tensor for tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import _core
from ._core import SegmentationScores
from ._errors import UsageError

__all__ = [
    "SegmentationScores",
    "bits_per_dimension",
    "mean_scores",
    "mean_squared_errors",
    "segmentation_scores",
    "structural_similarities",
    "valid_score",
]


def _tensor(values: Any, origin: str) -> torch.Tensor:
    if isinstance(values, torch.Tensor):
        return values.detach()
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"[{origin}] expected numbers as a tensor or an array, got {type(values).__name__} ({error}). Convert them.") from None


def _like(result: torch.Tensor, *given: Any) -> Any:
    return result if any(isinstance(value, torch.Tensor) for value in given) else result.numpy()


def mean_squared_errors(images: Any, references: Any) -> Any:
    """(B) float64: the mean of (image - reference)^2 of each image (B, C, H, W) on the scale of grey levels, 0..255.

    >>> import numpy, invattn
    >>> invattn.metrics.mean_squared_errors(numpy.zeros((2, 3, 8, 8)), numpy.full((2, 3, 8, 8), 2.0))
    array([4., 4.])
    """
    origin = "mean_squared_errors"
    return _like(_core.mean_squared_errors(_tensor(images, origin), _tensor(references, origin)), images, references)


def structural_similarities(images: Any, references: Any) -> Any:
    """(B) float64: the SSIM of each image (B, C, H, W), 0..255, as scikit-image computes it with a Gaussian window."""
    origin = "structural_similarities"
    return _like(_core.structural_similarities(_tensor(images, origin), _tensor(references, origin)), images, references)


def valid_score(mean_squared_errors: Any, limit: float = 10.0) -> float:
    """The V-score: the percentage of images whose mean squared error is below `limit`."""
    return _core.valid_score(_tensor(mean_squared_errors, "valid_score"), limit)


def bits_per_dimension(log_prob: Any, dimensions: int, levels: float = 1.0) -> Any:
    """(B) float64: -log2 p per dimension, from log p in nats of a density over pixels with noise."""
    return _like(_core.bits_per_dimension(_tensor(log_prob, "bits_per_dimension"), dimensions, levels), log_prob)


def segmentation_scores(prediction: Any, truth: Any) -> SegmentationScores:
    """MAE, S, F, E and weighted F of one predicted map (H, W) uint8 against its truth, as pysodmetrics computes them."""
    origin = "segmentation_scores"
    return _core.segmentation_scores(_tensor(prediction, origin), _tensor(truth, origin))


def mean_scores(images: Sequence[SegmentationScores]) -> SegmentationScores:
    """The mean of each score, and of each curve point by point."""
    return _core.mean_scores(list(images))
