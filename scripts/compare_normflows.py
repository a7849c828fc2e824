#!/usr/bin/env python3
"""A convolution block of a flow, here and in the Python package normflows, side by side on this machine.

usage: scripts/compare_normflows.py [--rounds 5] [--threads 2] [--tool build/invattn]

Both invert and train the residual block x + g(x), g of 12-128-128-12 channels with kernels 3x3, 1x1, 3x3 and LipSwish between, on 64x12x16x16
numbers in [-0.5, 0.5). The settings are the same: each convolution bounded by 0.9^(1/3) by power iteration. Two sets of weights: as they are
drawn, times ten, so that every bound is met (a random block is then still far from its constant); and with a common part added, which brings
the block near it, as training does. A training step has 5 power iterations, a log-determinant of 5 terms with Neumann gradient, and Adam.
Both inverses are as each library does them: normflows iterates to its built-in tolerance, invattn takes Anderson steps to a residual of 1e-7.
The `inverse` that normflows offers also estimates a log-determinant by some twenty terms, wanted or not; its iteration alone is timed as well.
The activation that normflows puts in front of the first convolution is left out.

The package goes into an environment of its own below the build folder and shares torch with the build. Processes take turns, each side
`rounds` times; the median of the rounds counts. Prints Markdown.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

PACKAGE = "normflows==1.7.3"
ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPE = (64, 12, 16, 16)
CONSTANT = 0.9
POWER_ITERATIONS = 5
TERMS = 5


def theirs(repeats):
    """One process's figures of normflows, as JSON."""
    import normflows
    import torch

    torch.manual_seed(0)
    net = normflows.nets.LipschitzCNN([12, 128, 128, 12], [3, 1, 3], lipschitz_const=CONSTANT ** (1 / 3), max_lipschitz_iter=POWER_ITERATIONS,
                                      init_zeros=False)
    net.net = net.net[1:]  # without the activation in front of the first convolution
    flow = normflows.flows.Residual(net, reverse=False, n_power_series=TERMS)
    x = torch.rand(SHAPE) - 0.5
    with torch.no_grad():
        for layer in net.net:
            if hasattr(layer, "beta"):
                layer.beta.fill_(math.log(math.expm1(0.5)))  # as invattn starts it
        net(x)  # sets up the vectors of the power iterations
        for layer in net.net:
            if hasattr(layer, "compute_weight"):
                layer.weight.mul_(10)
                layer.compute_weight(update=True, n_iterations=300)

    def bring_near_the_bound():  # as run_flow_block in apps/invattn/bench_flow.cpp does it
        for layer in net.net:
            if hasattr(layer, "compute_weight"):
                outputs, inputs, side, _ = layer.weight.shape
                noise = layer.weight.std() * side * (inputs**0.5 + outputs**0.5)
                layer.weight.add_(4 * noise / (side**2 * (inputs * outputs) ** 0.5))
                layer.bias.fill_(3)
                layer.compute_weight(update=True, n_iterations=300)
        net.net[-1].bias.sub_(net(x).mean((0, 2, 3)))  # its output has mean 0

    def largest_constant():
        part = x[:8].clone().requires_grad_()
        value = net(part)
        v = torch.randn_like(part)
        for _ in range(50):
            probe = torch.zeros_like(value, requires_grad=True)
            (pulled,) = torch.autograd.grad(value, part, probe, create_graph=True)
            (pushed,) = torch.autograd.grad(pulled, probe, v)  # J v
            norm = pushed.flatten(1).norm(dim=1) / v.flatten(1).norm(dim=1)
            (v,) = torch.autograd.grad(value, part, pushed / pushed.norm(), retain_graph=True)  # J' J v
        return norm.max().item()

    def median_ms(work):
        work()
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            work()
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times)

    found = {}
    flow.eval()
    for name in ("start", "bound"):
        with torch.no_grad():
            if name == "bound":
                bring_near_the_bound()
            y = flow.iresblock.forward(x)
            found[f"{name}_ms"] = median_ms(lambda: flow.iresblock.inverse(y))
            found[f"{name}_call_ms"] = median_ms(lambda: flow.inverse(y))
            found[f"{name}_error"] = (flow.iresblock.inverse(y) - x).abs().max().item()
        found[f"{name}_constant"] = largest_constant()

    flow.train()
    optimizer = torch.optim.Adam(flow.parameters(), 1e-3)

    def step():
        optimizer.zero_grad()
        z, minus_log_det = flow.forward(x)
        (z.square().mean() + minus_log_det.sum() / x.numel()).backward()
        optimizer.step()
        normflows.utils.update_lipschitz(flow, POWER_ITERATIONS)

    print(json.dumps(found | {"train_ms": median_ms(step)}))


def ours(tool, threads, repeats):
    answer = subprocess.run([tool, "bench", "flow-block", "--device", "cpu", "--threads", str(threads), "--repeats", str(repeats), "--json"],
                            check=True, capture_output=True, text=True)
    found = json.loads(answer.stdout)
    settings = (found["shape"], found["constant"], found["power_iterations"], found["terms"])
    assert settings == (list(SHAPE), CONSTANT, POWER_ITERATIONS, TERMS), f"the settings differ: {settings}"
    figures = {"train_ms": found["train"]["ms"], "machine": found["machine"]}
    for name in ("start", "bound"):
        inverse = found[f"inverse_{name}"]
        figures |= {f"{name}_ms": inverse["ms"], f"{name}_call_ms": inverse["ms"], f"{name}_error": inverse["round_trip"], f"{name}_constant": inverse["constant"]}
    return figures


def python_with_package(environment):
    """An environment with the package beside the torch of the python that runs this; made where it is not there."""
    python = environment / "bin" / "python"
    if python.exists() and subprocess.run([python, "-c", "import normflows"], capture_output=True).returncode == 0:
        return python
    torch_folder = subprocess.run([sys.executable, "-c", "import torch, pathlib; print(pathlib.Path(torch.__file__).parents[1])"],
                                  capture_output=True, text=True)
    if torch_folder.returncode != 0:
        sys.exit("expected a python3 with torch. Run this with the one of the build: .venv/bin/python3 scripts/compare_normflows.py")
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    packages = next((environment / "lib").glob("python3*/site-packages"))
    (packages / "torch_of_the_build.pth").write_text(torch_folder.stdout)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", PACKAGE], check=True)
    return python


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each work in a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tool", type=pathlib.Path, default=ROOT / "build" / "invattn")
    parser.add_argument("--theirs", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.theirs:
        import torch

        torch.set_num_threads(arguments.threads)
        theirs(arguments.repeats)
        return
    if not arguments.tool.exists():
        sys.exit(f"expected the built tool, got no {arguments.tool}. Run `make build`, or name it by --tool.")
    python = python_with_package(ROOT / "build" / "normflows-venv")
    environment = dict(os.environ, OMP_NUM_THREADS=str(arguments.threads))
    rounds = {"normflows": [], "invattn": []}
    for i in range(arguments.rounds):
        print(f"round {i + 1} of {arguments.rounds}", file=sys.stderr)
        answer = subprocess.run([python, __file__, "--theirs", "--threads", str(arguments.threads), "--repeats", str(arguments.repeats)], check=True,
                                capture_output=True, text=True, env=environment)
        rounds["normflows"].append(json.loads(answer.stdout))
        rounds["invattn"].append(ours(arguments.tool, arguments.threads, arguments.repeats))

    def median(side, key):
        return statistics.median(found[key] for found in rounds[side])

    machine = rounds["invattn"][0]["machine"]
    load = os.getloadavg()[1]
    print(f"{machine['cpu']}, {arguments.threads} of {machine['cores']} cores, load average {load:.1f}; {PACKAGE.replace('==', ' ')}, "
          f"invattn {machine['invattn']}, torch {machine['torch']}; {machine['date']}; medians of {arguments.rounds} alternating rounds of {arguments.repeats}\n")
    print("| | normflows | invattn | ratio |\n|---|---:|---:|---:|")
    for name, key in (("as drawn", "start"), ("near its bound", "bound")):
        for what, form, text in (("call_ms", ".0f", f"`inverse`, block {name}, ms"), ("ms", ".0f", "its iteration alone, ms"),
                                 ("error", ".1e", "largest error"), ("constant", ".2f", "largest local constant")):
            other, own = median("normflows", f"{key}_{what}"), median("invattn", f"{key}_{what}")
            print(f"| {text} | {other:{form}} | {own:{form}} | {f'{other / own:.1f}x' if form == '.0f' else ''} |")
    other, own = median("normflows", "train_ms"), median("invattn", "train_ms")
    print(f"| training step with log-determinant, ms | {other:.0f} | {own:.0f} | {other / own:.1f}x |")


if __name__ == "__main__":
    main()
