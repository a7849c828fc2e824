"""The guard over blocks that lie anywhere in a network."""

import copy

import pytest
import torch
from makers import KINDS, images
from torch import nn

import invattn


class Network(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.middle = nn.ModuleDict({"block": invattn.InvertibleAttention(6, kind=kind, bottleneck=1)})
        self.last = nn.Linear(6, 2)

    def forward(self, x):
        return self.last(self.middle["block"](self.first(x)).mean((2, 3)))


@pytest.mark.parametrize("kind", KINDS)
def test_training_under_the_guard(kind):
    network = Network(kind)
    guard = invattn.Guard(network, fraction=1, weight=10)
    assert len(guard) == 1 and guard.names == ["middle.block"]
    optimizer = torch.optim.Adam(network.parameters(), 3e-2)
    x = torch.randn(16, 3, 5, 5)
    for _ in range(15):
        loss = -network(x).square().mean()  # asks for as much as it can get
        penalty = guard.penalty()
        optimizer.zero_grad()
        (loss + penalty).backward()
        optimizer.step()
        guard.after_step()
    assert guard.last_largest > 0
    [certificate] = guard.finish(network, [x], "16 random images")
    block = network.middle["block"]
    assert certificate.contraction and certificate == block.certificate
    inner = network.first(x).detach()
    assert invattn.local_constants(block, inner).largest <= certificate.constant * 1.001 + 1e-6
    assert guard.constants[0].max() <= 0.9
    with torch.no_grad():
        y = block(inner)
        back, report = block.inverse(y, tolerance=1e-6)
        assert report.usable
        torch.testing.assert_close(block(back), y, rtol=1e-4, atol=1e-4)  # of another x a measured constant says nothing


def test_the_penalty_moves_the_block_alone():
    network = Network("gaussian")
    with torch.no_grad():
        network.middle["block"].branch.output.weight.mul_(30)
    guard = invattn.Guard(network, fraction=1, target=1e-3)
    network(images())
    guard.penalty().backward()
    assert network.first.weight.grad is None
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in network.middle.parameters())


def test_a_guard_goes_on_from_its_state():
    one = Network("dot-product")
    other = copy.deepcopy(one)
    x = torch.randn(8, 3, 5, 5)
    first = invattn.Guard(one, fraction=0.5)
    for _ in range(2):
        one(x)
        first.penalty()
    second = invattn.Guard(other, fraction=0.5)
    other(x)
    second.load_state_dict(first.state_dict())
    one(x)
    assert torch.equal(first.penalty(), second.penalty())


def test_replaced_weights_are_guarded():
    network = Network("concatenation")
    guard = invattn.Guard(network, fraction=1, target=1e-4)
    x = images()
    network(x)
    before = guard.penalty().item()
    state = {key: 3 * value for key, value in network.state_dict().items()}
    network.load_state_dict(state, assign=True)
    network(x)
    penalty = guard.penalty()
    assert penalty.item() != before
    penalty.backward()
    assert any(parameter.grad is not None for parameter in network.middle.parameters())


def test_a_guard_over_a_flow_and_a_python_branch():
    flow = invattn.Flow(channels=3, height=4, width=4, pixels="none", blocks=[1], hidden=4, attention="gaussian", attention_blocks=[2])
    guard = invattn.Guard(flow, fraction=1)
    assert len(guard) == 2 and len(guard.names) == 3
    flow.log_prob(images())
    assert guard.penalty().ndim == 0
    block = invattn.InvertibleResidual(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)))
    guard = invattn.Guard(block, fraction=1, target=1e-3)
    block(torch.randn(8, 3))
    guard.penalty().backward()
    assert all(parameter.grad is not None for parameter in block.branch[0].parameters())
    guard.hold()


def test_due():
    guard = invattn.Guard(Network("gaussian"), every=3, fraction=1)
    assert [guard.due(step, 8) for step in range(6)].count(True) == 2
