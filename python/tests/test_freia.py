"""Bijections as modules of FrEIA, held against its numerical Jacobian."""

import doctest

import pytest
import torch

import invattn
from adapter_cases import KINDS, TIGHT, assert_gradient, assert_same, attention, chain, copies, log_abs_det, perceptron, small_flow

pytest.importorskip("FrEIA")
import FrEIA.framework as Ff  # noqa: E402
import FrEIA.modules as Fm  # noqa: E402
import invattn.freia  # noqa: E402
from invattn.freia import InvertibleModule  # noqa: E402

IMAGE = (3, 2, 2)


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def settings(block, **more):
    return {"block": block, "estimator": "exact", "solver": TIGHT, **more}


def graph(dims, arguments):
    nodes = [Ff.InputNode(*dims)]
    nodes.append(Ff.Node(nodes[-1], InvertibleModule, arguments))
    nodes.append(Ff.OutputNode(nodes[-1]))
    return Ff.GraphINN(nodes)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_their_numerical_jacobian(kind, reverse):
    net = graph(IMAGE, settings(attention(kind), reverse=reverse))
    x = 0.5 * numbers(4, *IMAGE)
    z, log_det = net(x)
    assert log_det.abs().max() > 1e-3
    assert_same(log_det, net.log_jacobian_numerical(x, h=1e-4).to(log_det), 1e-4)
    again, minus = net(z, rev=True)
    assert_same(again, x)
    assert_same(minus, -log_det)
    assert_same(minus, net.log_jacobian_numerical(z, rev=True, h=1e-4).to(log_det), 1e-4)
    assert_same(log_det, log_abs_det(lambda v: net(v)[0], x))


@pytest.mark.parametrize("make, latents", [(chain, (12, 2, 2)), (small_flow, (48, 1, 1))])
@pytest.mark.parametrize("reverse", [False, True])
def test_shapes_are_inferred(make, latents, reverse):
    dims, result = (latents, (3, 4, 4)) if reverse else ((3, 4, 4), latents)
    net = Ff.SequenceINN(*dims)
    net.append(InvertibleModule, **settings(make(), reverse=reverse))
    assert net.shapes[-1] == result
    net.append(Fm.Flatten)
    x = 0.3 * numbers(3, *dims)
    z, log_det = net(x)
    assert z.shape == (3, 48)
    again, minus = net(z, rev=True)
    assert_same(again, x, 1e-6)
    assert_same(minus, -log_det, 1e-6)


def test_flat_inputs_and_blocks_made_of_sizes():
    net = Ff.SequenceINN(12)
    net.append(InvertibleModule, **settings(lambda channels, height, width: attention(shape=(channels, height, width)), shape=IMAGE))
    net.append(Fm.PermuteRandom, seed=1)
    net.append(InvertibleModule, **settings(perceptron, shape=(12,)))
    net.double()
    x = 0.5 * numbers(3, 12)
    z, log_det = net(x)
    assert_same(log_det, log_abs_det(lambda v: net(v)[0], x))
    assert_same(net(z, rev=True)[0], x)


def test_without_a_determinant():
    module = InvertibleModule([IMAGE], **settings(attention()))
    x = numbers(3, *IMAGE)
    (z,), none = module([x], jac=False)
    assert_same(z, module.block(x))
    assert_same(none, torch.zeros_like(none))
    assert none.shape == (3,)


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_both_directions(reverse):
    net = graph(IMAGE, settings(attention(), reverse=reverse))
    x = 0.5 * numbers(4, *IMAGE)

    def loss(rev):
        z, log_det = net(x, rev=rev)
        return z.sub(1).square().sum() / 2 - log_det.sum()

    assert_gradient(lambda: loss(False), net.parameters())
    assert_gradient(lambda: loss(True), net.parameters())


def test_training_among_their_modules():
    net = Ff.SequenceINN(*IMAGE)
    for kind in ("dot-product", "concatenation"):
        net.append(Fm.ActNorm)
        net.append(InvertibleModule, **settings(attention(kind, constant=0.1)))
    net.double()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    x = 0.5 * numbers(64, *IMAGE) + 0.3
    losses = []
    for _ in range(20):
        z, log_det = net(x)
        loss = (z.square().flatten(1).sum(1) / 2 - log_det).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05
    z, log_det = net(x)
    again, minus = net(z, rev=True)
    assert_same(again, x, 1e-6)
    assert_same(minus, -log_det, 1e-6)


def test_conditions_and_several_inputs_are_refused():
    block = attention()
    with pytest.raises(invattn.UsageError, match="expected no conditions"):
        InvertibleModule([IMAGE], [(5,)], block=block)
    with pytest.raises(invattn.UsageError, match="expected one input, got 2"):
        InvertibleModule([IMAGE, IMAGE], block=block)
    module = InvertibleModule([IMAGE], None, block=block)
    module([numbers(2, *IMAGE)], c=[])
    with pytest.raises(invattn.UsageError, match="expected no conditions"):
        module([numbers(2, *IMAGE)], c=[numbers(2, 5)])
    with pytest.raises(invattn.UsageError, match="expected a bijection"):
        InvertibleModule([IMAGE], block=lambda *size: torch.nn.Identity())


def test_copies():
    net = graph(IMAGE, settings(attention()))
    x = numbers(2, *IMAGE)
    for again in copies(net):
        assert_same(again(x)[1], net(x)[1])


def test_documentation():
    torch.manual_seed(0)
    assert doctest.testmod(invattn.freia).failed == 0
