"""Bijections as transforms of torch.distributions."""

import copy
import doctest
import pickle

import pytest
import torch
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import ComposeTransform

import invattn
import invattn.distributions
from adapter_cases import KINDS, TIGHT, assert_gradient, assert_same, attention, chain, log_abs_det, perceptron, small_flow
from invattn.distributions import Transform

IMAGE = (3, 2, 2)


def normal(shape):
    return Independent(Normal(torch.zeros(shape, dtype=torch.float64), torch.ones(shape, dtype=torch.float64)), len(shape))


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def exact(block, **settings):
    return Transform(block, estimator="exact", solver=TIGHT, **settings)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_determinants_are_those_of_the_map(kind, reverse):
    t = exact(attention(kind), reverse=reverse)
    x = 0.5 * numbers(3, *IMAGE)
    y = t(x)
    assert_same(t.inv(y), x)
    expected = log_abs_det(t, x)
    assert expected.abs().max() > 1e-3
    assert_same(t.log_abs_det_jacobian(x, y), expected)
    assert_same(t.inv.log_abs_det_jacobian(y, x), -expected)
    assert_same(log_abs_det(t.inv, y), -expected)
    both = t.call_and_ladj(x)
    assert_same(both[0], y)
    assert_same(both[1], expected)


@pytest.mark.parametrize("batch", [(), (4,), (2, 3), (2, 0)])
@pytest.mark.parametrize("flat", [False, True])
def test_any_batch_dimensions(batch, flat):
    t = exact(attention(), shape=IMAGE if flat else None)
    assert t.domain.event_dim == t.codomain.event_dim == t.event_dim == (1 if flat else 3)
    x = numbers(*batch, *((12,) if flat else IMAGE))
    y = t(x)
    assert y.shape == x.shape
    assert t.log_abs_det_jacobian(x, y).shape == batch
    assert_same(t.inv(y), x)
    rows = x.reshape(-1, *IMAGE) if x.numel() else x.new_zeros(0, *IMAGE)
    assert_same(y.reshape(rows.shape), t.block(rows))


@pytest.mark.parametrize("make, latents", [(chain, (12, 2, 2)), (small_flow, (48, 1, 1))])
@pytest.mark.parametrize("flat", [False, True])
def test_shapes_that_change(make, latents, flat):
    block = make()
    training = [module.training for module in block.modules()]
    image, latent = ((48,), (48,)) if flat else ((3, 4, 4), latents)
    t = exact(block, shape=(3, 4, 4) if flat else None)
    assert t.forward_shape((5, *image)) == (5, *latent)
    assert t.inverse_shape((5, *latent)) == (5, *image)
    assert [module.training for module in block.modules()] == training
    x = 0.3 * numbers(2, *image)
    y = t(x)
    assert y.shape == (2, *latent)
    assert_same(t.inv(y), x, 1e-6)
    assert_same(t.log_abs_det_jacobian(x, y), log_abs_det(t, x), 1e-6)
    model = TransformedDistribution(normal(latent), [t.inv])
    assert model.event_shape == image
    assert_same(model.log_prob(x), normal(latent).log_prob(y) + t.log_abs_det_jacobian(x, y), 1e-6)
    again = exact(block, shape=t.shape)
    assert_same(again.inv(y), x, 1e-6)  # undone before anything else was asked


@pytest.mark.parametrize("reverse", [False, True])
def test_density_of_the_plane_integrates_to_one(reverse):
    model = TransformedDistribution(normal((2,)), [exact(perceptron(), shape=(2,), reverse=reverse)])
    side = torch.linspace(-12, 12, 161, dtype=torch.float64)
    points = torch.cartesian_prod(side, side)
    with torch.no_grad():
        mass = model.log_prob(points).exp().sum() * (side[1] - side[0]) ** 2
    assert abs(mass - 1) < 1e-3


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_density_and_of_samples(kind, reverse):
    block = attention(kind)
    model = TransformedDistribution(normal(IMAGE), [exact(block, reverse=reverse)])
    x = 0.5 * numbers(4, *IMAGE)
    assert_gradient(lambda: model.log_prob(x).mean(), block.parameters())
    seed = int(torch.randint(2**31, ()))

    def loss():
        torch.manual_seed(seed)
        return model.rsample((4,)).sub(1).square().sum()

    assert_gradient(loss, block.parameters())


def test_maximum_likelihood_and_samples_train():
    target = TransformedDistribution(normal(IMAGE), [exact(attention("concatenation"), reverse=True)])
    for loss_of in ("density", "samples"):
        block = attention("dot-product", constant=0.1)
        model = TransformedDistribution(normal(IMAGE), [exact(block, reverse=True)])
        optimizer = torch.optim.Adam(block.parameters(), 1e-2)
        with torch.no_grad():
            data = target.sample((128,))
        losses = []
        for _ in range(15):
            if loss_of == "density":
                loss = -model.log_prob(data).mean()
            else:
                torch.manual_seed(0)
                x = model.rsample((64,))
                loss = (model.log_prob(x) + (x - 0.5).square().flatten(1).sum(1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < losses[0]


def test_composition_and_cache():
    block = attention()
    t = exact(block)
    x = numbers(4, *IMAGE)
    whole = ComposeTransform([t, exact(attention("concatenation")), t.inv])
    assert_same(whole.inv(whole(x)), x)
    assert_same(whole.log_abs_det_jacobian(x, whole(x)), log_abs_det(whole, x))
    kept = t.with_cache()
    assert kept.with_cache() is kept and kept.block is block
    y = kept(x)
    assert kept.inv(y) is x
    assert kept.last_report is None  # nothing was solved
    assert t.inv(y) is not x and t.last_report.usable


def test_estimators():
    block = attention()
    x = numbers(2000, *IMAGE)[:, :, :1]  # two positions
    expected = Transform(block, estimator="exact").log_abs_det_jacobian(x, x)
    for estimator in (invattn.SeriesLogDet(terms=30, seed=7), invattn.RouletteLogDet(minimum_terms=10, seed=7)):
        t = Transform(block, estimator=estimator)
        found = t.log_abs_det_jacobian(x, x)
        assert torch.equal(found, t.log_abs_det_jacobian(x, x))  # a seed repeats itself
        error = (found - expected).detach()
        assert error.mean().abs() < 6 * error.std() / len(x) ** 0.5 + 1e-4
    t = Transform(block, estimator="series")
    assert not torch.equal(t.log_abs_det_jacobian(x, x), t.log_abs_det_jacobian(x, x))
    t.estimator = "exact"
    assert torch.equal(t.log_abs_det_jacobian(x, x), expected)


def test_float32():
    t = Transform(attention().float(), estimator="exact")
    x = torch.randn(5, *IMAGE)
    y, log_det = t.call_and_ladj(x)
    assert y.dtype == log_det.dtype == torch.float32
    assert_same(t.inv(y), x, 1e-4)


def test_copies():
    for cache_size in (0, 1):
        t = exact(attention(), cache_size=cache_size)
        x = numbers(2, *IMAGE)
        y = t(x)
        t.inv(y + 0)
        for again in (copy.deepcopy(t), pickle.loads(pickle.dumps(t))):
            assert again.block is not t.block and again.last_report is None
            assert torch.equal(again(x), y)
    assert repr(t).startswith("Transform(InvertibleAttention, reverse=False")


def test_what_is_not_undone_is_said():
    t = Transform(attention(), solver=invattn.AndersonOptions(tolerance=1e-14, max_iterations=1))
    x = numbers(2, *IMAGE)
    with pytest.warns(invattn.InvattnWarning, match="expected every sample to be undone"):
        t.inv(t(x))
    assert not t.last_report.usable
    t.solver = invattn.AndersonOptions(tolerance=1e-14, max_iterations=1, on_failure="throw")
    with pytest.raises(invattn.NotConvergedError):
        t.inv(t(x))


def test_mistakes_are_named():
    block = attention()
    with pytest.raises(invattn.UsageError, match="expected a bijection of invattn.*got Linear"):
        Transform(torch.nn.Linear(2, 2))
    with pytest.raises(invattn.UsageError, match="expected.*exact.*got 'exacte'"):
        Transform(block, estimator="exacte")
    with pytest.raises(invattn.UsageError, match="expected a solver.*AndersonOptions.*got int"):
        Transform(block, solver=7)
    with pytest.raises(invattn.UsageError, match="expected flat samples of 12 numbers"):
        Transform(block, shape=IMAGE)(numbers(5, 13))
    with pytest.raises(invattn.UsageError, match="expected samples"):
        Transform(block)(numbers(2, 2))
    with pytest.raises(invattn.UsageError, match="at least 3 dimensions"):
        Transform(block).forward_shape((12,))


def test_documentation():
    torch.manual_seed(0)
    assert doctest.testmod(invattn.distributions).failed == 0
