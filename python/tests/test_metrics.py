"""Metrics of numpy arrays and of tensors."""

import numpy as np
import pytest
import torch

import invattn
from invattn import metrics


def test_arrays_give_arrays_and_tensors_tensors():
    images = torch.rand(2, 3, 16, 16) * 255
    references = images + 2
    for function in (metrics.mean_squared_errors, metrics.structural_similarities):
        of_tensors = function(images, references)
        of_arrays = function(images.numpy(), references.numpy())
        assert isinstance(of_tensors, torch.Tensor) and isinstance(of_arrays, np.ndarray)
        np.testing.assert_array_equal(of_tensors.numpy(), of_arrays)
    np.testing.assert_allclose(metrics.mean_squared_errors(images, references), 4, rtol=1e-4)
    assert metrics.valid_score(np.array([1.0, 20.0, np.nan])) == pytest.approx(100 / 3)
    np.testing.assert_allclose(metrics.bits_per_dimension(np.array([-10 * np.log(2.0)]), 5), [2.0])


def test_maps():
    truth = np.zeros((32, 32), np.uint8)
    truth[8:20, 8:20] = 255
    perfect = metrics.segmentation_scores(truth, truth)
    assert perfect.mae == 0 and perfect.s_measure > 0.99 and perfect.max_f > 0.99 and len(perfect.f) == 256
    noise = metrics.segmentation_scores(torch.randint(0, 256, (32, 32), dtype=torch.uint8), torch.from_numpy(truth))
    both = metrics.mean_scores([perfect, noise])
    assert both.mae == pytest.approx(noise.mae / 2)


def test_wrong_input():
    with pytest.raises(invattn.UsageError):
        metrics.mean_squared_errors(np.zeros((2, 3, 8, 8)), np.zeros((2, 3, 8, 9)))
    with pytest.raises(invattn.UsageError, match="expected numbers"):
        metrics.mean_squared_errors("abc", np.zeros((2, 3, 8, 9)))
    with pytest.raises(invattn.UsageError):
        metrics.segmentation_scores(np.zeros((8, 8)), np.zeros((8, 8)))
