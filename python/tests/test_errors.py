"""What is wrong is said: what was expected, what came, and what to do."""

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
from makers import BIJECTIONS, KINDS, MODULES, Branch, images, started
from torch import nn

import invattn


def block(**options):
    return invattn.InvertibleAttention(3, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: block(kind="dot-prodct"), "did you mean dot-product"),
        (lambda: block(bottlneck=2), "did you mean bottleneck"),
        (lambda: block(constant=2), "constant"),
        (lambda: block(constant="0.9"), "expected a finite number for 'constant', got '0.9' \\(str\\)"),
        (lambda: block(constant=float("nan")), "finite"),
        (lambda: block(bottleneck=1.5), "expected an integer"),
        (lambda: block(bottleneck=True), "expected an integer"),
        (lambda: block(bottleneck=2**70), "64-bit"),
        (lambda: block(bias=1), "True or False"),
        (lambda: block(kind=3), "expected a kind"),
        (lambda: block(policy="none"), "policy"),
        (lambda: block(preset="gaurded"), "did you mean guarded"),
        (lambda: invattn.InvertibleAttention(0), "channels"),
        (lambda: invattn.Flow(blocks=3), "expected a list"),
        (lambda: invattn.Flow(blocks=[1, "2"]), "blocks\\[1\\]"),
        (lambda: invattn.Flow("papr"), "did you mean paper"),
        (lambda: invattn.Flow(blocks=[10**7]), "blocks"),
        (lambda: invattn.ActNorm(0), "channels"),
        (lambda: invattn.Squeeze(0), "factor"),
        (lambda: invattn.GuardOptions(measure={"tolerence": 1}), "did you mean tolerance"),
        (lambda: invattn.GuardOptions(measure=3), "expected options"),
        (lambda: invattn.AndersonOptions(tolerance=-1), "tolerance"),
        (lambda: invattn.InvertibleResidual(3), "expected a branch"),
        (lambda: invattn.InvertibleResidual(block()), "A bijection is not one"),
        (lambda: invattn.InvertibleResidual(invattn.Attention(3, policy="none")), "policy"),
        (lambda: invattn.InvertibleResidual(invattn.Attention(3), constant=0.5), "Set them there"),
        (lambda: invattn.InvertibleResidual(Branch(), policy="strict"), "guarded or paper"),
        (lambda: invattn.InvertibleResidual(Branch(), constant=1.5), "below 1"),
        (lambda: invattn.Sequential(nn.Linear(2, 2)), "expected a bijection"),
        (lambda: invattn.Guard(nn.Linear(2, 2)), "without any"),
        (lambda: invattn.Guard(3), "expected a torch.nn.Module"),
        (lambda: invattn.use_kernels("fats"), "did you mean fast"),
        (lambda: invattn.attention_preset("strict", "gausian", 3), "did you mean gaussian"),
    ],
)
def test_wrong_options(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert isinstance(caught.value, invattn.UsageError) and isinstance(caught.value, invattn.Error)
    assert ", got " in str(caught.value)


def test_wrong_methods_and_their_options():
    one = block()
    x = images()
    for call, message in [
        (lambda: one.inverse(x, "andersen"), "did you mean anderson"),
        (lambda: one.inverse(x, tolerence=1e-3), "did you mean tolerance"),
        (lambda: one.inverse(x, 3), "expected a solver by name or one of"),
        (lambda: one.forward_log_det(x, "exakt"), "did you mean exact"),
        (lambda: one.forward_log_det(x, "exact", terms=3), "expected an option named max_dimension"),
        (lambda: one.forward_log_det(x, invattn.AndersonOptions()), "an estimator"),
        (lambda: invattn.local_constants(one, x, tol=3), "tolerance"),
        (lambda: invattn.local_constants(invattn.Squeeze(), x), "residual block or a branch"),
        (lambda: one.inverse(x, max_iterations=1, on_failure="throw"), "converged"),
    ]:
        with pytest.raises(invattn.Error, match=message):
            call()
    with pytest.raises(invattn.NotConvergedError):
        one.inverse(x, max_iterations=1, tolerance=1e-12, on_failure="throw")


@pytest.mark.parametrize("name", BIJECTIONS)
def test_wrong_inputs(name):
    module, x = started(*BIJECTIONS[name])
    for wrong in (x[0, 0], x.int(), x.double() if name != "squeeze" else x.int(), x.half()):
        for call in (module, module.inverse, lambda x: module.forward_log_det(x, "exact")):
            with pytest.raises((ValueError, RuntimeError, TypeError)) as caught:
                call(wrong)
            assert ", got " in str(caught.value) or name == "python", str(caught.value)
    for wrong in ([[1.0]], None, 3):
        with pytest.raises(invattn.UsageError, match="expected a tensor"):
            module(wrong)


@pytest.mark.parametrize("name", [name for name in BIJECTIONS if name not in ("squeeze", "python")])
def test_another_device(name):
    module, x = started(*BIJECTIONS[name])
    with pytest.raises(invattn.UsageError, match="one device"):
        module(x.to("meta"))


@pytest.mark.parametrize("name", BIJECTIONS)
def test_an_image_that_is_not_finite_spoils_no_other(name):
    module, x = started(*BIJECTIONS[name])
    with torch.no_grad():
        expected = module.inverse(module(x))[0]
        y = module(x)
        y[0] = float("nan")
        back, report = module.inverse(y)
    torch.testing.assert_close(back[1:], expected[1:], rtol=1e-4, atol=1e-4)
    if name not in ("actnorm", "squeeze"):
        assert not report.usable and report.statuses[0] == "not finite" and "not finite" in report.brief()


@pytest.mark.parametrize("name", BIJECTIONS)
def test_an_empty_batch(name):
    module, x = started(*BIJECTIONS[name])
    y = module(x[:0])
    assert y.shape[0] == 0
    back, report = module.inverse(y)
    assert back.shape == x[:0].shape and len(report) == 0


def test_a_branch_on_another_device_or_of_another_shape():
    x = torch.randn(4, 3)

    class Other(nn.Module):
        def __init__(self, result):
            super().__init__()
            self.result = result

        def forward(self, x):
            return self.result(x)

    for result, message in [
        (lambda x: x.to("meta"), "on cpu.*on meta"),
        (lambda x: x[:, :2], "like its argument"),
        (lambda x: x.double(), "like its argument"),
        (lambda x: (x, x), "expected the branch to return a tensor, got tuple"),
    ]:
        with pytest.raises(invattn.UsageError, match=message):
            invattn.InvertibleResidual(Other(result))(x)

    def broken(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        invattn.InvertibleResidual(Other(broken))(x)
    with pytest.raises(KeyError, match="mine"):
        invattn.InvertibleResidual(Other(broken)).inverse(x)


def test_a_gradient_that_is_not_found_is_not_a_number():
    class Cancelling(nn.Module):
        def forward(self, x):
            return torch.where(x[:, :1] > 0, -x, 0.5 * x)  # x + g(x) = 0 for some

    one = invattn.InvertibleResidual(Cancelling())
    y = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 2.0, 3.0]], requires_grad=True)
    x, report = one.inverse(y, "fixed-point")
    assert not report.usable and report.statuses[1] == "converged"
    x.sum().backward()
    assert y.grad[0].isnan().all()
    torch.testing.assert_close(y.grad[1], torch.full((3,), 1 / 1.5), rtol=1e-4, atol=1e-5)


def test_pickles_of_another_version():
    state = block().__getstate__()
    state["_pickled"] = (99, "7.0.0")
    with pytest.raises(invattn.DataError, match="got one of 99 \\(invattn 7.0.0\\)"):
        invattn.InvertibleAttention.__new__(invattn.InvertibleAttention).__setstate__(state)


def test_options_are_values():
    options = invattn.AttentionOptions(channels=3, kind="gaussian")
    assert options == invattn.AttentionOptions(channels=3, kind="gaussian") != options.replace(kind="dot-product")
    assert pickle.loads(pickle.dumps(options)) == options and eval(repr(options), vars(invattn)) == options
    assert hash(options) == hash(options.replace())
    with pytest.raises(AttributeError):
        options.kind = "dot-product"
    assert dict(options.as_dict(), kind="dot-product") == options.replace(kind="dot-product").as_dict()
    for cls in (invattn.FlowOptions, invattn.GuardOptions, invattn.DetectorOptions):
        assert all(len(field) == 4 and field[3] in cls.__doc__ for field in cls.fields())


def run(code, **options):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, **options)


def test_another_torch_is_refused_in_one_line():
    done = run(
        """
        import torch
        torch.__version__ = "2.10.1+cpu"
        import invattn
        """
    )
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 1 and lines[-1].startswith("ImportError: [invattn] expected torch 2.11") and "got 2.10.1+cpu" in lines[-1]


def test_two_threads_in_one_block():
    module, x = started(*MODULES["sequential"])
    expected = module(x)
    wrong = []

    def use():
        for _ in range(20):
            if not torch.equal(module(x), expected) or not module.inverse(expected)[1].usable:
                wrong.append(1)

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("name", ["dot-product", "convolution", "python"])
def test_training_in_two_threads(name):
    module, x = started(*BIJECTIONS[name])
    failures = []

    def train():
        try:
            for _ in range(10):
                y, log_det = module.forward_log_det(x, "series", terms=3)
                (y.square().sum() - log_det.value.sum()).backward()
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_fork_after_import():
    done = run(
        """
        import os, torch, invattn
        block = invattn.InvertibleAttention(8)
        x = torch.randn(4, 8, 12, 12)
        with torch.no_grad():
            expected = block(x)
        child = os.fork()
        if child == 0:
            with torch.no_grad():
                back, report = block.inverse(block(x))
                close = torch.allclose(block(x), expected, atol=1e-5) and report.usable
            os._exit(0 if close else 7)
        _, status = os.waitpid(child, 0)
        raise SystemExit(os.waitstatus_to_exitcode(status))
        """
    )
    assert done.returncode == 0, done.stderr


SLOW = """
import signal, sys, threading, time, torch, invattn
torch.set_num_threads(1)
torch.manual_seed(0)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
{setup}
def interrupt():
    time.sleep(1)
    global sent
    sent = time.monotonic()
    signal.raise_signal(signal.SIGINT) if False else __import__("os").kill(__import__("os").getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    with torch.no_grad():
        {call}
    print("ended")
except KeyboardInterrupt:
    print("interrupted after", round(time.monotonic() - sent, 3))
    with torch.no_grad():
        small = invattn.InvertibleAttention(3)
        print(small.inverse(torch.randn(1, 3, 2, 2))[1].usable)
"""


@pytest.mark.parametrize(
    ("setup", "call"),
    [
        (
            "block = invattn.InvertibleAttention(16, kind='gaussian', policy='paper'); x = torch.randn(64, 16, 48, 48)",
            "block.inverse(x, 'fixed-point', tolerance=1e-30, max_iterations=10**6)",
        ),
        (
            "class G(torch.nn.Module):\n    def forward(self, x): return 0.999999 * x.sin()\nblock = invattn.InvertibleResidual(G()); x = torch.randn(8, 3)",
            "block.inverse(x.double(), 'fixed-point', tolerance=1e-300, max_iterations=10**9)\n        while True: block.inverse(x.double())",
        ),
    ],
)
def test_a_long_inverse_stops_at_ctrl_c(setup, call):
    done = run(SLOW.format(setup=setup, call=call))
    lines = done.stdout.split("\n")
    assert lines[0].startswith("interrupted after") and float(lines[0].split()[-1]) < 1, (done.stdout, done.stderr)
    assert lines[1] == "True", "the next one runs"


def test_a_handler_of_ones_own_runs():
    done = run(
        """
        import os, signal, threading, time, torch, invattn
        torch.set_num_threads(1)
        seen = []
        signal.signal(signal.SIGINT, lambda *_: seen.append(1))
        block = invattn.InvertibleAttention(16, kind="concatenation")
        x = torch.randn(16, 16, 24, 24)
        threading.Thread(target=lambda: (time.sleep(0.2), os.kill(os.getpid(), signal.SIGINT)), daemon=True).start()
        started = time.monotonic()
        with torch.no_grad():
            while time.monotonic() - started < 1:
                y, report = block.inverse(x)
                assert report.usable
        assert seen == [1], seen
        """
    )
    assert done.returncode == 0, done.stderr
