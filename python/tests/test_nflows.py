"""Bijections as transforms of nflows, held against the checks of its own tests."""

import doctest

import pytest
import torch

import invattn
from adapter_cases import KINDS, TIGHT, assert_gradient, assert_same, attention, chain, copies, log_abs_det, perceptron, small_flow

pytest.importorskip("nflows")
import invattn.nflows  # noqa: E402
import nflows.distributions  # noqa: E402
import nflows.flows  # noqa: E402
import nflows.transforms  # noqa: E402
from invattn.nflows import Transform  # noqa: E402

IMAGE = (3, 2, 2)


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def exact(block, **settings):
    return Transform(block, estimator="exact", solver=TIGHT, **settings)


@pytest.fixture
def double():
    """nflows draws noise in torch's default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def assert_tensor_is_good(tensor, shape):
    assert torch.isfinite(tensor).all()
    assert tensor.shape == torch.Size(shape)


def assert_forward_inverse_are_consistent(transform, inputs, tolerance=1e-8):
    """The method of this name in nflows' tests."""
    inverse = nflows.transforms.InverseTransform(transform)
    identity = nflows.transforms.CompositeTransform([inverse, transform])
    outputs, logabsdet = identity(inputs)
    assert_tensor_is_good(outputs, inputs.shape)
    assert_tensor_is_good(logabsdet, inputs.shape[:1])
    assert_same(outputs, inputs, tolerance)
    assert_same(logabsdet, torch.zeros_like(logabsdet), tolerance)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_their_check(kind, reverse):
    transform = exact(attention(kind), reverse=reverse)
    inputs = 0.5 * numbers(3, *IMAGE)
    outputs, logabsdet = transform(inputs)
    assert_tensor_is_good(outputs, inputs.shape)
    assert_tensor_is_good(logabsdet, (3,))
    assert_forward_inverse_are_consistent(transform, inputs)
    expected = log_abs_det(lambda v: transform(v)[0], inputs)
    assert expected.abs().max() > 1e-3
    assert_same(logabsdet, expected)
    assert_same(transform.inverse(inputs)[1], log_abs_det(lambda v: transform.inverse(v)[0], inputs))


@pytest.mark.parametrize("make", [chain, small_flow])
def test_chains_and_flows_on_flat_samples(make):
    transform = exact(make(), shape=(3, 4, 4))
    inputs = 0.3 * numbers(3, 48)
    assert_forward_inverse_are_consistent(transform, inputs, 1e-6)
    assert_same(transform(inputs)[1], log_abs_det(lambda v: transform(v)[0], inputs), 1e-6)


def test_shapes_that_change():
    outputs, _ = exact(chain())(0.3 * numbers(3, 3, 4, 4))
    assert outputs.shape == (3, 12, 2, 2)


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_density_and_of_samples(reverse):
    flow = nflows.flows.Flow(exact(attention(), reverse=reverse), nflows.distributions.StandardNormal(list(IMAGE)).double())
    x, noise = 0.5 * numbers(4, *IMAGE), numbers(4, *IMAGE)
    assert_gradient(lambda: flow.log_prob(x).mean(), flow.parameters())
    assert_gradient(lambda: flow._transform.inverse(noise)[0].sub(1).square().sum(), flow.parameters())


def test_training(double):
    parts = [exact(perceptron(2), shape=(2,)), nflows.transforms.ReversePermutation(features=2), exact(perceptron(2), shape=(2,))]
    flow = nflows.flows.Flow(nflows.transforms.CompositeTransform(parts), nflows.distributions.StandardNormal([2]).double())
    optimizer = torch.optim.Adam(flow.parameters(), 1e-2)
    data = 0.5 * numbers(256, 2) + 0.5
    losses = []
    for _ in range(25):
        loss = -flow.log_prob(data).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05
    flow.eval()
    with torch.no_grad():
        samples, log_prob = flow.sample_and_log_prob(64)
        assert_same(flow.log_prob(samples), log_prob, 1e-6)
        assert flow.transform_to_noise(data).shape == data.shape


def test_context():
    block, inputs, context = attention(), numbers(3, *IMAGE), numbers(3, 5)
    with pytest.raises(invattn.UsageError, match=r"expected no context, got one of shape \(3, 5\)"):
        exact(block)(inputs, context=context)
    with pytest.raises(invattn.UsageError, match="expected no context"):
        exact(block).inverse(inputs, context)
    flow = nflows.flows.Flow(exact(block, ignore_context=True), nflows.distributions.ConditionalDiagonalNormal(list(IMAGE)))
    assert flow.log_prob(inputs, numbers(3, 24).reshape(3, 24)).shape == (3,)


def test_copies():
    transform = exact(attention())
    inputs = numbers(2, *IMAGE)
    for again in copies(transform):
        assert isinstance(again, nflows.transforms.Transform)
        assert_same(again(inputs)[1], transform(inputs)[1])


def test_documentation():
    torch.manual_seed(0)
    assert doctest.testmod(invattn.nflows).failed == 0
