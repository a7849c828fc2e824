#!/usr/bin/env python3
"""What a mask costs: padded sequences of many lengths beside a batch of the same size without padding.

usage: python padding.py [--device cuda] [--shape 64x64x12] [--kind dot-product ...] [--rounds 7]

A batch with a mask runs once for each length that occurs in it, on the real positions alone. Lengths are drawn evenly from 1 to N, with
a seed; "by eights" rounds them up to multiples of N / 8. Beside them the same batch without a mask, all N positions real: one call, with
about three times the entries of the response maps. A training step is the forward pass with a log-determinant of 5 terms and the backward
pass. Ways take turns, and the median of the rounds counts. Prints Markdown.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import invattn

KINDS = ["gaussian", "embedded-gaussian", "dot-product", "concatenation", "distance"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kind", nargs="+", default=["dot-product"], choices=KINDS)
    parser.add_argument("--shape", default="64x64x12", help="B x N x C")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    batch, positions, channels = (int(size) for size in arguments.shape.split("x"))
    print(f"{arguments.device}, {arguments.threads} threads; torch {torch.__version__}, invattn {invattn.__version__}; B x N x C = "
          f"{arguments.shape}, median of {arguments.rounds} rounds, ms\n")
    print("| kind | work | no mask, one call | lengths by eights | any length |")
    print("|---|---|---:|---:|---:|")
    for kind in arguments.kind:
        torch.manual_seed(arguments.seed)
        block = invattn.InvertibleAttention(channels, kind=kind).to(arguments.device)
        with torch.no_grad():
            block.branch.output.weight.mul_(0.5)
        x = 0.5 * torch.randn(batch, positions, channels, device=arguments.device)
        lengths = torch.randint(1, positions + 1, (batch,))
        eighth = max(1, positions // 8)
        ways = [{}, {"lengths": ((lengths + eighth - 1) // eighth * eighth).clamp_max(positions)}, {"lengths": lengths}]
        for work, run in works(block, x).items():
            times = measure([lambda known=known, run=run: run(**known) for known in ways], arguments)
            print(f"| {kind} | {work} | " + " | ".join(f"{1e3 * seconds:.2f}" for seconds in times) + " |", flush=True)
        different = [len(set(known["lengths"].tolist())) for known in ways[1:]]
    print(f"\nDifferent lengths: {different[0]} and {different[1]}; real positions: {int(ways[1]['lengths'].sum())} and {int(lengths.sum())} "
          f"of {batch * positions}.")


def works(block: invattn.InvertibleAttention, x: torch.Tensor) -> dict[str, Callable]:
    def forward(**known):
        with torch.no_grad():
            return block(x, **known)

    def inverse(**known):
        with torch.no_grad():
            return block.inverse(x, tolerance=1e-6, **known)

    def train(**known):
        block.zero_grad()
        y, log_det = block.forward_log_det(x, "series", terms=5, **known)
        (y.square().mean() - log_det.value.mean()).backward()

    return {"forward": forward, "inverse": inverse, "training step": train}


def measure(runs: list[Callable], arguments: argparse.Namespace) -> list[float]:
    """The median time of each, in turns."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(arguments.rounds + 1):  # the first is not counted
        for run, kept in zip(runs, times):
            synchronize(arguments.device)
            started = time.perf_counter()
            run()
            synchronize(arguments.device)
            kept.append(time.perf_counter() - started)
    return [statistics.median(kept[1:]) for kept in times]


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
