"""Padded sequences and sets: each sample is computed as it would be alone."""

import pickle

import pytest
import torch
from makers import KINDS, Branch, images
from torch import nn

import invattn

LENGTHS = [5, 0, 2, 3, 2]


class Mixer(nn.Module):
    """A branch over the positions it is given, written in Python."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.inner = Branch(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * self.inner(x - x.mean(1, keepdim=True))


def chain():
    return invattn.Sequential(
        invattn.ActNorm(3),
        invattn.InvertibleAttention(3, kind="dot-product", bottleneck=1),
        invattn.InvertibleResidual(Mixer()),
    )


MODELS = {
    **{kind: (lambda kind=kind: invattn.InvertibleAttention(3, kind=kind, bottleneck=1)) for kind in KINDS},
    "strict": lambda: invattn.InvertibleAttention(3, preset="strict", kind="embedded-gaussian"),
    "python": lambda: invattn.InvertibleResidual(Mixer()),
    "actnorm": lambda: invattn.ActNorm(3),
    "sequential": chain,
}
every_model = pytest.mark.parametrize("name", MODELS)


def sequences(dtype=torch.float64):
    x = 0.5 * torch.randn(len(LENGTHS), 5, 3, dtype=dtype)
    mask = torch.arange(5) < torch.tensor(LENGTHS)[:, None]
    x[~mask] = torch.tensor([float("nan"), 1e30, -7.0], dtype=dtype)
    return x, mask


def model_of(name, dtype=torch.float64):
    model = MODELS[name]().to(dtype)
    with torch.no_grad():
        model(sequences(dtype)[0], lengths=LENGTHS)  # which starts an ActNorm
    return model.eval()


@every_model
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_padded_batch_is_its_samples(name, dtype):
    model = model_of(name, dtype)
    x, mask = sequences(dtype)
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-12}[dtype]
    close = {"rtol": 20 * tolerance, "atol": 20 * tolerance}
    with torch.no_grad():
        y, log_det = model.forward_log_det(x, "exact", lengths=LENGTHS)
        back, report = model.inverse(y, tolerance=tolerance, mask=mask)
        assert torch.equal(model(x, mask=mask)[mask], y[mask])
        assert report.usable and len(report.statuses) == len(LENGTHS)
        assert log_det.value[1] == 0 and report.statuses[1] == "exact"
        for result in (y, back):
            torch.testing.assert_close(result[~mask], x[~mask], rtol=0, atol=0, equal_nan=True)
        for b, length in enumerate(LENGTHS):
            if length == 0:
                continue
            own, determinant = model.forward_log_det(x[b : b + 1, :length], "exact")
            torch.testing.assert_close(y[b, :length], own[0], **close)
            torch.testing.assert_close(log_det.value[b], determinant.value[0], **close)
            torch.testing.assert_close(back[b, :length], x[b, :length], **close)


@every_model
def test_gradients_are_those_of_the_samples(name):
    model = model_of(name)
    x, mask = sequences()
    for map in (lambda x, **known: model(x, **known), lambda x, **known: model.inverse(x, tolerance=1e-12, **known)[0]):
        leaf = x.clone().requires_grad_()
        model.zero_grad()
        map(leaf, mask=mask)[mask].square().sum().backward()
        whole = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        model.zero_grad()
        assert (leaf.grad[~mask] == 0).all()
        for b, length in enumerate(LENGTHS):
            if length > 0:
                own = x[b : b + 1, :length].clone().requires_grad_()
                map(own).square().sum().backward()
                torch.testing.assert_close(leaf.grad[b, :length], own.grad[0], rtol=1e-7, atol=1e-8)
        alone = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        torch.testing.assert_close(whole, alone, rtol=1e-7, atol=1e-8)


def test_lengths_may_be_what_stands_for_integers():
    block = model_of("concatenation")
    x, mask = sequences()
    expected = block(x, mask=mask)[mask]
    for lengths in (LENGTHS, tuple(LENGTHS), torch.tensor(LENGTHS), torch.tensor(LENGTHS, dtype=torch.int32)):
        assert torch.equal(block(x, lengths=lengths)[mask], expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(block(x, lengths=LENGTHS)[mask], expected)
    assert torch.equal(pickle.loads(pickle.dumps(block))(x, lengths=LENGTHS)[mask], expected)


def test_attention_by_itself():
    plain = invattn.Attention(3, preset="plain", kind="embedded-gaussian", bottleneck=1)
    x, mask = sequences(torch.float32)
    value = plain(x, mask=mask)
    assert (value[~mask] == 0).all()
    torch.testing.assert_close(value[:1], plain(x[:1]))
    assert plain.response(x[:1]).shape == (1, 5, 5)


def test_local_constants():
    block = model_of("dot-product")
    x, mask = sequences()
    found = invattn.local_constants(block, x, mask=mask, tolerance=1e-9).constants
    assert found[1] == 0
    torch.testing.assert_close(found[2:3], invattn.local_constants(block, x[2:3, :2], tolerance=1e-9).constants, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["dot-product", "sequential"])
def test_the_guard(name):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = MODELS[name]()
            self.last = nn.Linear(3, 1)

        def forward(self, x, lengths):
            return self.last(self.model(x, lengths=lengths).nan_to_num()).mean()

    network = Network()
    guard = invattn.Guard(network, fraction=1)
    optimizer = torch.optim.Adam(network.parameters(), 3e-2)
    x, mask = sequences(torch.float32)
    for _ in range(10):
        y = network.model(x, lengths=LENGTHS)[mask]
        loss = -y.square().mean() + guard.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        guard.after_step()
    certificates = guard.finish(lambda rows: network(x[rows], torch.tensor(LENGTHS)[rows]), [torch.arange(5)], "five sequences")
    assert all(certificate.contraction for certificate in certificates)
    assert all(torch.isfinite(parameter).all() for parameter in network.parameters())
    with torch.no_grad():
        model = network.model.eval()
        back, report = model.inverse(model(x, mask=mask), mask=mask, tolerance=1e-5)
        assert report.usable


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({"mask": torch.ones(5, 5)}, "a mask of bool"),
        ({"mask": torch.ones(5, 4, dtype=torch.bool)}, "expected a mask (B, N)"),
        ({"mask": [[True]]}, "expected a tensor as mask"),
        ({"mask": torch.ones(5, 5, dtype=torch.bool), "lengths": LENGTHS}, "got both"),
        ({"lengths": [6, 1, 1, 1, 1]}, "lengths from 0 to the 5 positions"),
        ({"lengths": [-1, 1, 1, 1, 1]}, "got -1 to 1"),
        ({"lengths": [1, 1]}, "expected a mask (B, N)"),
        ({"lengths": [1.0] * 5}, "int64"),
        ({"lengths": "five"}, "expected lengths"),
    ],
)
@pytest.mark.parametrize("name", ["concatenation", "sequential"])
def test_mistakes_are_named(name, known, text):
    model = MODELS[name]()
    x, _ = sequences(torch.float32)
    for call in (model, model.inverse, model.forward_log_det):
        with pytest.raises(invattn.UsageError, match=text.replace("(", r"\(").replace(")", r"\)")):
            call(x, **known)


def test_what_has_no_use_for_a_mask_refuses_it():
    mask = torch.ones(2, 16, dtype=torch.bool)
    flow = invattn.Flow(channels=3, height=4, width=4, pixels="none", blocks=[1], hidden=4)
    for model in (invattn.Squeeze(), invattn.InvertibleResidual(invattn.Convolution(3, 4, 4, hidden=4)), flow):
        with pytest.raises(invattn.UsageError, match="expected no mask"):
            model(images(), mask=mask)
        with pytest.raises(invattn.UsageError, match="with lengths"):
            model(images(), lengths=[2, 2])
    with pytest.raises(invattn.UsageError, match="expected sequences"):
        invattn.InvertibleAttention(3)(images(), mask=mask)
