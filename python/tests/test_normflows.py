"""Bijections as flows of normflows, held against its own checks."""

import doctest

import pytest
import torch

import invattn
from adapter_cases import KINDS, TIGHT, assert_gradient, assert_same, attention, chain, copies, log_abs_det, perceptron, small_flow

nf = pytest.importorskip("normflows")
import invattn.normflows  # noqa: E402
from invattn.normflows import Flow  # noqa: E402
from normflows.flows.flow_test import FlowTest  # noqa: E402  normflows' own, of its wheel

IMAGE = (3, 2, 2)


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def exact(block, **settings):
    return Flow(block, estimator="exact", solver=TIGHT, **settings)


@pytest.fixture
def double():
    """normflows adds log-determinants up in torch's default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Target(nf.distributions.Target):
    """A normal distribution around 0.5."""

    def __init__(self):
        super().__init__()

    def log_prob(self, z):
        return -2 * (z - 0.5).square().flatten(1).sum(1)


def model_of(blocks, shape=IMAGE, **settings):
    base = nf.distributions.DiagGaussian(shape, trainable=False).double()
    return nf.NormalizingFlow(base, [exact(block, **settings) for block in blocks], Target())


@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_their_check(kind, reverse):
    flow = exact(attention(kind), reverse=reverse)
    z = 0.5 * numbers(3, *IMAGE)
    FlowTest().checkForwardInverse(flow, z, atol=1e-8, rtol=1e-8)
    expected = log_abs_det(lambda v: flow(v)[0], z)
    assert expected.abs().max() > 1e-3
    assert_same(flow(z)[1], expected)
    assert_same(flow.inverse(z)[1], log_abs_det(lambda v: flow.inverse(v)[0], z))


@pytest.mark.parametrize("make", [chain, small_flow])
@pytest.mark.parametrize("reverse", [True, False])
def test_their_check_of_chains_and_flows_on_flat_samples(make, reverse):
    flow = exact(make(), reverse=reverse, shape=(3, 4, 4))
    z = 0.3 * numbers(3, 48)
    FlowTest().checkForwardInverse(flow, z, atol=1e-6, rtol=1e-6)
    assert_same(flow(z)[1], log_abs_det(lambda v: flow(v)[0], z), 1e-6)


def test_their_check_of_a_branch_of_ones_own():
    flow = exact(perceptron(2), shape=(2,))
    FlowTest().checkForwardInverse(flow, numbers(50, 2), atol=1e-8, rtol=1e-8)


def test_their_check_with_a_series():
    flow = Flow(attention(), estimator=invattn.SeriesLogDet(terms=20, seed=7), solver=TIGHT)
    FlowTest().checkForwardInverse(flow, numbers(3, *IMAGE), atol=1e-6, rtol=1e-6)


def test_reverse_is_that_of_their_residual():
    block, x = attention(), numbers(3, *IMAGE)
    assert_same(exact(block).inverse(x)[0], block(x))
    assert_same(exact(block, reverse=False)(x)[0], block(x))
    assert_same(nf.flows.Reverse(exact(block))(x)[0], block(x))


@pytest.mark.parametrize("reverse", [True, False])
def test_gradients_of_both_divergences(reverse, double):
    model = model_of([attention("dot-product"), attention("concatenation")], reverse=reverse)
    x = 0.5 * numbers(5, *IMAGE)
    assert_gradient(lambda: model.forward_kld(x), model.flows.parameters())
    seed = int(torch.randint(2**31, ()))

    def loss():
        torch.manual_seed(seed)
        return model.reverse_kld(5)

    assert_gradient(loss, model.flows.parameters())


def test_path_gradient_of_the_reverse_divergence():
    """score_fn=False switches the gradients of all weights off and on again on its way."""
    model = model_of([attention()])
    model.reverse_kld(8, score_fn=False).backward()
    assert all(weight.requires_grad and weight.grad is not None for weight in model.flows.parameters())


@pytest.mark.parametrize("divergence", ["forward", "reverse"])
def test_training(divergence, double):
    model = model_of([attention("gaussian", constant=0.1), attention("concatenation", constant=0.1)])
    guard = invattn.Guard(model, fraction=1.0)
    assert len(guard) == 2
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    data = 0.5 * numbers(128, *IMAGE) + 0.5
    losses = []
    for _ in range(25):
        if divergence == "forward":
            loss = model.forward_kld(data)
        else:
            torch.manual_seed(0)
            loss = model.reverse_kld(64)
        losses.append(loss.item())
        loss = loss + guard.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        guard.after_step()
    assert losses[-1] < losses[0] - 0.1
    model.eval()
    certificates = guard.finish(lambda batch: model.forward_kld(batch), [data], "the training data")
    assert [certificate.basis for certificate in certificates] == ["measured"] * 2
    x, log_prob = model.sample(32)
    assert_same(model.log_prob(x), log_prob, 1e-6)


def test_context():
    block, z, context = attention(), numbers(3, *IMAGE), numbers(3, 5)
    flow = exact(block)
    assert_same(flow(z, context=None)[0], flow(z)[0])
    for direction in (flow, flow.inverse):
        with pytest.raises(invattn.UsageError, match=r"expected no context, got one of shape \(3, 5\)"):
            direction(z, context=context)
    flow = exact(block, ignore_context=True)
    assert_same(flow.inverse(z, context=context)[0], block(z))


def test_copies_and_weights():
    flow = exact(attention())
    x = numbers(2, *IMAGE)
    flow(x)
    assert flow.last_report.usable
    for again in copies(flow):
        assert isinstance(again, nf.flows.Flow) and again.last_report is None
        assert_same(again.inverse(x)[0], flow.inverse(x)[0])
    other = exact(attention())
    other.load_state_dict(flow.state_dict())
    assert_same(other.inverse(x)[1], flow.inverse(x)[1])
    assert "reverse=True" in repr(flow)


def test_modes_and_types_reach_the_block():
    flow = exact(attention()).eval().float()
    assert not flow.block.training and next(flow.block.parameters()).dtype == torch.float32
    flow.solver = "anderson"
    z = torch.randn(3, *IMAGE)
    FlowTest().checkForwardInverse(flow, z, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu():
    model = nf.NormalizingFlow(nf.distributions.DiagGaussian(IMAGE), [Flow(attention().float(), estimator="exact")], Target()).to("cuda")
    model.forward_kld(torch.randn(8, *IMAGE, device="cuda")).backward()
    model.reverse_kld(8).backward()
    assert all(weight.grad.is_cuda for weight in model.flows.parameters())


def test_documentation():
    torch.manual_seed(0)
    assert doctest.testmod(invattn.normflows).failed == 0
