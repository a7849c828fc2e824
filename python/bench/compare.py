#!/usr/bin/env python3
"""Invertible attention from Python, side by side with what else there is, on this machine.

usage: python compare.py [--device cuda] [--kind dot-product ...] [--shape 64x12x16x16] [--tool build/invattn] [--rounds 5] [--no-compile]

All sides hold the same attention with the same weights, and are checked to compute the same y:

- invattn from Python, with Anderson's method to a residual of 1e-6;
- invattn in C++, as the tool measures it (`invattn bench`, with --tool);
- plain PyTorch: the paper's algorithm, 100 fixed-point steps and autograd, see published.py; also under torch.compile;
- normflows' Residual around the same branch; its inverse estimates a log-determinant as well, its iteration alone is timed, too;
- FrEIA's IResNetLayer around the same branch, 50 fixed-point steps. Its log-determinant carries no gradient: its training step is less
  work.

A training step is the forward pass with a log-determinant of 5 terms, the backward pass and a step of Adam. Contenders take turns; the
median of the rounds counts; what takes over three seconds is timed once. At the end: what a call from Python costs beyond the library's
own work. Prints Markdown, ratios first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from published import STEPS, PlainAttention, PublishedBlock
from torch import Tensor, nn

import invattn

KINDS = ["gaussian", "embedded-gaussian", "dot-product", "concatenation"]
CONSTANT = 0.88  # the largest local constant on the input, as of a block that was trained under the guard
TERMS = 5
SLOW = 3000  # ms: what takes longer is timed once
WORKS = {"inverse": "Inverse", "forward": "Forward pass", "train": "Training step with log-determinant"}


@dataclass
class Contender:
    name: str
    run: Callable[[], Tensor | None]
    note: str = ""


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    torch.backends.cuda.matmul.allow_tf32 = False
    shape = tuple(int(size) for size in arguments.shape.split("x"))
    print(f"{machine(arguments)}; torch {torch.__version__}, invattn {invattn.__version__}; {arguments.shape} numbers, "
          f"median of {arguments.rounds} rounds\n")
    for kind in arguments.kind:
        match = Match(kind, shape, arguments)
        for work in arguments.work:
            print(f"### {WORKS[work]}, {kind}\n")
            print("| | times as long as invattn | ms | largest error of x | |\n|---|---:|---:|---:|---|")
            for row in match.rows(work):
                print(row, flush=True)
            print()
    overhead(arguments)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kind", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--work", nargs="+", default=list(WORKS), choices=list(WORKS))
    parser.add_argument("--shape", default="64x12x16x16")
    parser.add_argument("--tool", help="the command-line tool invattn, for the figures of C++")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile, which takes a minute or two")
    return parser.parse_args()


def machine(arguments: argparse.Namespace) -> str:
    if arguments.device.startswith("cuda"):
        return torch.cuda.get_device_name(arguments.device)
    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return f"{names[0] if names else 'CPU'}, {arguments.threads} threads"


class Match:
    """The contenders for one kind of attention."""

    def __init__(self, kind: str, shape: tuple[int, ...], arguments: argparse.Namespace) -> None:
        self.kind, self.shape, self.arguments = kind, shape, arguments
        torch.manual_seed(0)
        self.x = (torch.rand(shape) - 0.5).to(arguments.device)
        self.block = ours(kind, shape[1], self.x)
        self.y = self.block(self.x).detach()
        self.target = 0.25 * torch.randn(shape).to(arguments.device)

    def rows(self, work: str) -> list[str]:
        contenders = self.contenders(work)
        times: dict[str, list[float]] = {}
        notes = {contender.name: contender.note for contender in contenders}
        errors: dict[str, str] = {}
        slow: dict[str, bool] = {}
        for contender in contenders:  # once for the result, and to warm up
            try:
                result = contender.run()
                slow[contender.name] = self.milliseconds(contender.run) > SLOW
            except Exception as error:  # noqa: BLE001  what cannot be done is a result
                notes[contender.name] = f"fails: {str(error).splitlines()[0][:90]}"
                continue
            times[contender.name] = []
            if work == "inverse":
                errors[contender.name] = f"{(result - self.x).abs().max().item():.1e}"
        for number in range(self.arguments.rounds):
            for contender in contenders:
                if contender.name in times and (number == 0 or not slow[contender.name]):
                    times[contender.name].append(self.milliseconds(contender.run))
        medians = {name: statistics.median(values) for name, values in times.items()}
        tool = self.tool_milliseconds(work)
        if tool is not None:
            medians["invattn, C++"] = tool
            notes["invattn, C++"] = "another process"
        own = medians["invattn, Python"]
        order = [contender.name for contender in contenders]
        order.insert(1, "invattn, C++")
        return [
            f"| {name} | {medians[name] / own:.2f}x | {medians[name]:.2f} | {errors.get(name, '')} | {notes[name]} |"
            if name in medians
            else f"| {name} | | | | {notes[name]} |"
            for name in order
            if name in medians or name in notes
        ]

    def milliseconds(self, run: Callable[[], Tensor | None]) -> float:
        """Of one call: of several where it is quick."""
        calls, seconds = 0, 0.0
        self.wait()
        start = time.perf_counter()
        while seconds < 0.2 and calls < 200:
            run()
            self.wait()
            calls += 1
            seconds = time.perf_counter() - start
        return 1e3 * seconds / calls

    def wait(self) -> None:
        if self.x.is_cuda:
            torch.cuda.synchronize()

    def plain(self, compiled: bool = False) -> nn.Module:
        branch = PlainAttention(self.shape[1], self.kind).to(self.x.device)
        weights = {name.removeprefix("branch."): weight for name, weight in self.block.state_dict().items()}
        branch.load_state_dict({name: weights[name].reshape(own.shape) for name, own in branch.state_dict().items()})
        with torch.no_grad():
            error = (self.x + branch(self.x) - self.y).abs().max().item()
        assert error < 1e-4, f"the plain branch computes something else: {error}"
        return torch.compile(branch, dynamic=False) if compiled else branch

    def contenders(self, work: str) -> list[Contender]:
        result = [Contender("invattn, Python", getattr(self, f"our_{work}")())]
        published = f"{STEPS} steps" if work == "inverse" else ""
        result.append(Contender("plain PyTorch, the paper's", getattr(self, f"published_{work}")(self.plain()), published))
        if not self.arguments.no_compile:
            result.append(Contender("the same, torch.compile", getattr(self, f"published_{work}")(self.plain(compiled=True)), published))
        try:
            result += getattr(self, f"normflows_{work}")()
        except ImportError:
            print("(normflows is not installed)", file=sys.stderr)
        try:
            result += getattr(self, f"freia_{work}")()
        except ImportError:
            print("(FrEIA is not installed)", file=sys.stderr)
        return result

    # -- inverse

    def our_inverse(self) -> Callable[[], Tensor]:
        solver = invattn.AndersonOptions(tolerance=1e-6)

        def run() -> Tensor:
            with torch.no_grad():
                x, report = self.block.inverse(self.y, solver)
            assert report.usable
            return x

        return run

    def published_inverse(self, branch: nn.Module) -> Callable[[], Tensor]:
        block = PublishedBlock(branch)
        return lambda: block.inverse(self.y)

    def normflows_inverse(self) -> list[Contender]:
        import normflows

        flow = normflows.flows.Residual(self.plain(), reverse=False, n_power_series=TERMS).to(self.x.device).eval()

        def alone() -> Tensor:
            with torch.no_grad():
                return flow.iresblock.inverse(self.y)

        return [
            Contender("normflows Residual", lambda: flow.inverse(self.y.clone())[0].detach(), "with a log-determinant"),
            Contender("its iteration alone", alone, "to its own tolerance"),
        ]

    def freia_layer(self) -> nn.Module:
        import FrEIA.modules

        layer = FrEIA.modules.IResNetLayer([self.shape[1:]], jacobian_iterations=TERMS).to(self.x.device)
        layer.residual = self.plain()
        return layer

    def freia_inverse(self) -> list[Contender]:
        layer = self.freia_layer()

        def run() -> Tensor:
            with torch.no_grad():
                return layer([self.y], rev=True, jac=False)[0][0]

        return [Contender("FrEIA IResNetLayer", run, "50 steps")]

    # -- forward

    def our_forward(self) -> Callable[[], Tensor]:
        return without_gradients(lambda: self.block(self.x))

    def published_forward(self, branch: nn.Module) -> Callable[[], Tensor]:
        return without_gradients(lambda: self.x + branch(self.x))

    def normflows_forward(self) -> list[Contender]:
        import normflows

        flow = normflows.flows.Residual(self.plain(), reverse=False, n_power_series=TERMS).to(self.x.device)
        return [Contender("normflows Residual", without_gradients(lambda: flow.iresblock.forward(self.x)), "without a log-determinant")]

    def freia_forward(self) -> list[Contender]:
        layer = self.freia_layer()
        return [Contender("FrEIA IResNetLayer", without_gradients(lambda: layer([self.x], jac=False)[0][0]))]

    # -- training step

    def step(self, module: nn.Module, log_det_of: Callable[[], tuple[Tensor, Tensor]]) -> Callable[[], None]:
        optimizer = torch.optim.Adam(module.parameters(), 1e-6)  # every step is the same work

        def run() -> None:
            y, log_det = log_det_of()
            loss = (y - self.target).square().mean() - log_det.sum() / self.x.numel()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return run

    def our_train(self) -> Callable[[], None]:
        block = ours(self.kind, self.shape[1], self.x)
        options = invattn.SeriesLogDet(terms=TERMS)

        def run() -> tuple[Tensor, Tensor]:
            y, log_det = block.forward_log_det(self.x, options)
            return y, log_det.value

        return self.step(block, run)

    def published_train(self, branch: nn.Module) -> Callable[[], None]:
        block = PublishedBlock(branch)
        return self.step(block, lambda: block.forward_log_det(self.x, TERMS))

    def normflows_train(self) -> list[Contender]:
        import normflows

        flow = normflows.flows.Residual(self.plain(), reverse=False, n_power_series=TERMS).to(self.x.device)

        def run() -> tuple[Tensor, Tensor]:
            y, log_det = flow(self.x.clone())
            return y, -log_det

        return [Contender("normflows Residual", self.step(flow, run))]

    def freia_train(self) -> list[Contender]:
        layer = self.freia_layer()

        def run() -> tuple[Tensor, Tensor]:
            (y,), log_det = layer([self.x.clone()])
            return y, log_det

        return [Contender("FrEIA IResNetLayer", self.step(layer, run), "its log-determinant carries no gradient")]

    # -- the tool

    def tool_milliseconds(self, work: str) -> float | None:
        if not self.arguments.tool:
            return None
        command = [self.arguments.tool, "bench", work, "--kind", self.kind, "--shape", self.arguments.shape, "--normalization", "columns"]
        command += ["--device", self.arguments.device, "--threads", str(self.arguments.threads), "--json"]
        command += ["--log-det", "series"] if work == "train" else []
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return fast_milliseconds(json.loads(done.stdout))


def ours(kind: str, channels: int, x: Tensor) -> invattn.InvertibleAttention:
    """A seeded block, W_L scaled so that the largest local constant at x is CONSTANT, as `invattn bench` makes it."""
    torch.manual_seed(1)
    options = {"normalization": "columns", "start": "uniform", "value_constant": 0.0, "output_constant": 0.0}
    block = invattn.InvertibleAttention(channels, kind=kind, **options).to(x.device)
    with torch.no_grad():
        block.branch.output.weight.mul_(CONSTANT / invattn.local_constants(block, x, tolerance=1e-2).largest)
    return block


def without_gradients(function: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with torch.no_grad():
            return function()

    return run


def fast_milliseconds(result: dict) -> float:
    """Of the fast side, from the JSON of `invattn bench`."""
    return result["rows"][0]["fast"]["ms"]


def overhead(arguments: argparse.Namespace) -> None:
    """What a call from Python costs: of the smallest block, whose own work is next to nothing, beside the bound function alone."""
    torch.manual_seed(0)
    x = torch.randn(1, 4, 2, 2, device=arguments.device)
    block = invattn.InvertibleAttention(4).to(arguments.device)
    block(x)
    native = block._handle()
    module = nn.Linear(2, 2).to(arguments.device)
    with torch.no_grad():
        results = {}
        for name, call in {"block(x)": lambda: block(x), "library": lambda: native.forward(x), "module": lambda: module(x[..., 0])}.items():
            for _ in range(200):
                call()
            rounds = []
            for _ in range(9):
                start = time.perf_counter()
                for _ in range(300):
                    call()
                rounds.append((time.perf_counter() - start) / 300)
                if x.is_cuda:
                    torch.cuda.synchronize()
            results[name] = 1e6 * min(rounds)  # the rest is what else the machine does
    print("### A call from Python\n")
    print("| | us |\n|---|---:|")
    print(f"| beyond the library's own work (goal: 30) | {results['block(x)'] - results['library']:.1f} |")
    print(f"| block(x) of 1x4x2x2 numbers | {results['block(x)']:.1f} |")
    print(f"| of that in the library | {results['library']:.1f} |")
    print(f"| for comparison: a Linear(2, 2) of torch | {results['module']:.1f} |")


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    main()
