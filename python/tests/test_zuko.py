"""Bijections as lazy transforms of zuko, held against the checks of its own tests."""

import doctest

import pytest
import torch

import invattn
from adapter_cases import KINDS, TIGHT, assert_gradient, assert_same, attention, chain, copies, perceptron, small_flow

zuko = pytest.importorskip("zuko")
import invattn.zuko  # noqa: E402
from invattn.zuko import LazyTransform  # noqa: E402

IMAGE = (3, 2, 2)


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def exact(block, **settings):
    return LazyTransform(block, estimator="exact", solver=TIGHT, **{"shape": IMAGE, **settings})


def base(features):
    normal = zuko.distributions.DiagNormal
    return zuko.lazy.UnconditionalDistribution(normal, torch.zeros(features).double(), torch.ones(features).double(), buffer=True)


def flow_of(*transforms, features=12):
    return zuko.lazy.Flow(list(transforms), base(features))


def mixed(**settings):
    """Our blocks among zuko's transforms."""
    permutation = zuko.lazy.UnconditionalTransform(zuko.transforms.PermutationTransform, torch.randperm(12), buffer=True)
    first, second = (exact(attention(kind), **settings) for kind in ("dot-product", "concatenation"))
    return flow_of(first, permutation, second, exact(perceptron(12), shape=(12,)))


@pytest.mark.parametrize(
    "make",
    [
        *(lambda kind=kind: exact(attention(kind)) for kind in KINDS),
        lambda: exact(attention(), reverse=True),
        lambda: exact(attention()).inv,
        lambda: exact(perceptron(12), shape=(12,)),
    ],
    ids=[*KINDS, "reverse", "inv", "perceptron"],
)
def test_multivariate_transforms(make):
    """The body of zuko's test of this name."""
    t = make()()
    x = 0.5 * numbers(64, 12)
    y = t(x)
    assert x.shape == y.shape, t
    assert torch.allclose(t.inv(y), x, atol=1e-8), t
    assert torch.allclose(t.inv.inv(x), y, atol=1e-8), t
    x = 0.5 * numbers(12)
    y = t(x)
    jacobian = torch.autograd.functional.jacobian(t, x)
    ladj = torch.linalg.slogdet(jacobian).logabsdet
    assert (jacobian - torch.eye(12)).abs().max() > 1e-3  # not the identity
    assert torch.allclose(t.log_abs_det_jacobian(x, y), ladj, atol=1e-8), t
    z, both = t.call_and_ladj(x)
    assert torch.allclose(z, y) and torch.allclose(both, ladj, atol=1e-8)
    jacobian = torch.autograd.functional.jacobian(t.inv, y)
    ladj = torch.linalg.slogdet(jacobian).logabsdet
    assert torch.allclose(t.inv.log_abs_det_jacobian(y, x), ladj, atol=1e-8), t
    z, both = t.inv.call_and_ladj(y)
    assert torch.allclose(z, x, atol=1e-8) and torch.allclose(both, ladj, atol=1e-8)


@pytest.mark.parametrize("make", [mixed, lambda: mixed(reverse=True)], ids=["forward", "reverse"])
def test_flows(make, tmp_path):
    """The body of zuko's test of this name, without a context."""
    flow = make()
    x = 0.5 * numbers(256, 12)
    log_p = flow().log_prob(x)
    assert log_p.shape == (256,)
    assert log_p.requires_grad
    flow.zero_grad(set_to_none=True)
    (-log_p.mean()).backward()
    for name, weight in flow.named_parameters():
        assert weight.grad is not None, name
    flow.eval()
    with torch.no_grad():
        assert torch.allclose(flow().log_prob(x), log_p)
    flow.train()
    z = flow().sample((32,))
    assert z.shape == (32, 12)
    flow.zero_grad(set_to_none=True)
    flow().rsample().square().sum().sqrt().backward()
    for name, weight in flow.named_parameters():
        assert weight.grad is not None, name
    t = flow().transform
    assert torch.allclose(t.inv(t(x)), x, atol=1e-6)
    sample, log_p = flow().rsample_and_log_prob((5,))
    assert torch.allclose(flow().log_prob(sample), log_p, atol=1e-6)
    torch.save(flow, tmp_path / "flow.pth")
    again = torch.load(tmp_path / "flow.pth", weights_only=False)
    assert torch.allclose(again().log_prob(x), flow().log_prob(x))
    assert repr(flow)


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_density_and_of_samples(reverse):
    flow = mixed(reverse=reverse)
    x = 0.5 * numbers(4, 12)
    assert_gradient(lambda: flow().log_prob(x).mean(), flow.parameters())
    seed = int(torch.randint(2**31, ()))

    def loss():
        torch.manual_seed(seed)
        samples, log_prob = flow().rsample_and_log_prob((4,))
        return samples.sub(1).square().sum() + log_prob.sum()

    assert_gradient(loss, flow.parameters())


def test_images_and_any_batch_dimensions():
    flow = flow_of(LazyTransform(attention(), estimator="exact"), features=IMAGE)
    x = 0.5 * numbers(2, 5, *IMAGE)
    assert flow().log_prob(x).shape == (2, 5)
    assert flow().event_shape == IMAGE
    assert flow().sample((2, 5)).shape == x.shape


@pytest.mark.parametrize("make, latents", [(chain, (12, 2, 2)), (small_flow, (48, 1, 1))])
def test_shapes_that_change(make, latents):
    block = make()
    flat, images = flow_of(exact(block, shape=(3, 4, 4)), features=48), flow_of(exact(block, shape=None), features=latents)
    assert images().event_shape == (3, 4, 4)
    x = 0.3 * numbers(4, 3, 4, 4)
    assert_same(images().log_prob(x), flat().log_prob(x.flatten(1)), 1e-6)
    with torch.no_grad():
        assert images().sample((3,)).shape == (3, 3, 4, 4) and flat().sample((3,)).shape == (3, 48)


def test_training_in_a_spline_flow():
    spline = zuko.flows.NSF(12, transforms=1, hidden_features=[16]).double()
    flow = zuko.lazy.Flow([exact(attention(constant=0.1)), spline.transform], spline.base)
    guard = invattn.Guard(flow, fraction=1.0)
    assert len(guard) == 1
    data = 0.5 * numbers(128, 12) + 0.5
    optimizer = torch.optim.Adam(flow.parameters(), 1e-2)
    losses = []
    for _ in range(20):
        loss = -flow().log_prob(data).mean()
        losses.append(loss.item())
        loss = loss + guard.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        guard.after_step()
    assert losses[-1] < losses[0] - 0.1


def test_context():
    block, context = attention(), numbers(5)
    with pytest.raises(invattn.UsageError, match=r"expected no context, got one of shape \(5,\)"):
        exact(block)(context)
    conditional = zuko.flows.MAF(12, 5, transforms=1, hidden_features=[16]).double()
    flow = zuko.lazy.Flow([exact(block, ignore_context=True), conditional.transform], conditional.base)
    x, c = 0.5 * numbers(7, 12), numbers(7, 5)
    assert flow(c).log_prob(x).shape == (7,)
    assert flow(c).sample().shape == (7, 12)


def test_copies():
    lazy = exact(attention())
    x = numbers(2, 12)
    for again in copies(lazy):
        assert isinstance(again, zuko.lazy.LazyTransform)
        assert_same(again()(x), lazy()(x))


def test_documentation():
    torch.manual_seed(0)
    assert doctest.testmod(invattn.zuko).failed == 0
