"""Invertible attention as one writes it in plain PyTorch, from the paper: the peer that compare.py measures against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 100  # of the paper's inverse


class PlainAttention(nn.Module):
    """W_L A(x) with the columns of the response map normalised (the paper's equations 2 to 4); weights named as invattn names them."""

    def __init__(self, channels: int, kind: str, bottleneck: int = 4) -> None:
        super().__init__()
        self.kind = kind
        hidden = max(1, channels // bottleneck)
        if kind != "gaussian":
            self.query = nn.Conv1d(channels, hidden, 1)
            self.key = nn.Conv1d(channels, hidden, 1)
        if kind == "concatenation":
            self.concat = nn.Conv1d(2 * hidden, 1, 1, bias=False)
        self.value = nn.Conv1d(channels, channels, 1)
        self.output = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        positions = x.flatten(2)  # (B, C, N)
        if self.kind == "gaussian":
            scores = positions.transpose(1, 2) @ positions
        elif self.kind == "concatenation":
            w = self.concat.weight.flatten()
            d = w.numel() // 2
            scores = (w[:d] @ self.query(positions)).unsqueeze(2) + (w[d:] @ self.key(positions)).unsqueeze(1)
        else:
            scores = self.query(positions).transpose(1, 2) @ self.key(positions)
        if self.kind in ("gaussian", "embedded-gaussian"):
            response = torch.softmax(scores, dim=1)  # exp, each column divided by its sum
        else:
            response = F.elu(scores) + 1
            response = response / response.sum(1, keepdim=True)
        return self.output(self.value(positions) @ response.transpose(1, 2)).reshape(x.shape)


class PublishedBlock(nn.Module):
    """y = x + g(x): the fixed-point inverse of 100 steps, and the truncated series of autograd's vector products as log-determinant."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)

    def forward_log_det(self, x: Tensor, terms: int) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_(True)
        g = self.branch(x)
        probe = torch.randn_like(x)
        product, log_det = probe, 0.0
        for k in range(1, terms + 1):
            (product,) = torch.autograd.grad(g, x, product, create_graph=True, retain_graph=True)
            log_det = log_det + (-1) ** (k + 1) / k * (product * probe).flatten(1).sum(1)
        return x + g, log_det

    @torch.no_grad()
    def inverse(self, y: Tensor) -> Tensor:
        x = y
        for _ in range(STEPS):
            x = y - self.branch(x)
        return x
