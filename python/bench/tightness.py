#!/usr/bin/env python3
"""How tight the promises of trained blocks are: of each cell of a run of `invattn reconstruct`, what its certificate says of the local
constant of g, the largest that was measured on images, and the largest that an adversary finds.

usage: python tightness.py RUN [--steps 200] [--points 16] [--seed 0]

Cells of the first seed alone have pictures, and only they are looked at. The adversary begins at those pictures and at random points of the box [-r, r] with r the certificate's domain, or 0.5, where pixels
lie: evenly spread ones, corners, and points about one colour. It climbs log |J v| by gradient steps that get shorter, with v the top
singular vector by power iteration, and stays within the box. Prints a row of Markdown per cell.
"""

from __future__ import annotations

import argparse
import json
import pathlib

import torch
from safetensors.torch import load_file
from torch import Tensor

import invattn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--points", type=int, default=16, help="of each of the three random sorts")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    cells = sorted(path for path in arguments.run.glob("cells/*/cell.json") if (path.parent / "pictures.safetensors").exists())
    if not cells:
        parser.error(f"expected the folder of a run of invattn reconstruct with finished cells, got {arguments.run}")
    print("| data | kind | variant | loss | V-score | promised | on images | by the adversary |")
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for path in cells:
        row = json.loads(path.read_text(encoding="utf-8"))
        _, block = invattn.load(str(path.parent / "model.safetensors"))
        certificate = block.certificate
        radius = certificate.domain_radius or 0.5
        found = attack(block.branch, starts(path.parent, arguments, radius), radius, arguments.steps)
        texts = {"proved": "{:.3f}", "measured": "({:.3f})"}
        promised = texts.get(certificate.basis, "-").format(certificate.constant)
        print(f"| {row['dataset']} | {row['kind']} | {row['variant']} | {row['loss']:.4f} | {row['v_score']:.2f} | {promised} | "
              f"{row['lipschitz_max']:.3f} | {found:.3f} |", flush=True)


def starts(folder: pathlib.Path, arguments: argparse.Namespace, radius: float) -> Tensor:
    """Points to begin at, (B, C, H, W), behind the squeeze."""
    generator = torch.Generator().manual_seed(arguments.seed)
    pictures = load_file(folder / "pictures.safetensors")["input"]
    images = torch.nn.functional.pixel_unshuffle(pictures, 2)
    shape = (arguments.points, *images.shape[1:])
    even = torch.empty(shape).uniform_(-radius, radius, generator=generator)
    corners = radius * torch.empty(shape).bernoulli_(generator=generator).mul(2).sub(1)
    colours = torch.empty(shape[0], shape[1], 1, 1).uniform_(-radius, radius, generator=generator) + 0.05 * even
    return torch.cat([images, even, corners, colours]).clamp(-radius, radius)


def attack(branch: torch.nn.Module, x: Tensor, radius: float, steps: int) -> float:
    """The largest local constant on the way up."""
    largest = 0.0
    vectors = unit(torch.randn(x.shape, generator=torch.Generator().manual_seed(1)))
    for step in range(steps + 1):
        # v follows by power iteration as x moves; at the ends it is iterated to the end.
        x = x.detach().requires_grad_()
        left = torch.zeros_like(x).requires_grad_()
        y = branch(x)
        (pulled,) = torch.autograd.grad(y, x, left, create_graph=True)  # J'u, a linear function of u
        for _ in range(40 if step in (0, steps) else 2):
            (pushed,) = torch.autograd.grad(pulled, left, vectors, retain_graph=True)  # J v
            u = unit(pushed.detach())
            (back,) = torch.autograd.grad(y, x, u, retain_graph=True)
            vectors = unit(back.detach())
        (pulled,) = torch.autograd.grad(y, x, u, create_graph=True)
        constants = (pulled * vectors).flatten(1).sum(1)
        largest = max(largest, constants.max().item())
        (slope,) = torch.autograd.grad(constants.clamp_min(1e-12).log().sum(), x)
        stride = 0.3 * (1 - step / max(steps, 1)) + 0.01
        x = (x.detach() + stride * radius * (x[0].numel() ** 0.5) * unit(slope)).clamp(-radius, radius)
    return largest


def unit(samples: Tensor) -> Tensor:
    return samples / samples.flatten(1).norm(dim=1).clamp_min(1e-30).view(-1, 1, 1, 1)


if __name__ == "__main__":
    main()
