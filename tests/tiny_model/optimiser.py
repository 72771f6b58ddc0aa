# pyright: basic, reportMissingImports=false
"""Two ways to take a step: Muon for the matrices, AdamW for embedding and norms.

Pure, apart from changing the tensors that it is given. Matrices of one shape are
stacked and made orthogonal together, which a CPU does much faster than one by one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

COMPUTED_IN = (
    torch.bfloat16
    if getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)()
    else torch.float32
)
"""What products are computed in: 16 bits where the processor multiplies them itself. Where it has
to convert them, they take twice the time of 32 (measured on one with AVX-512 alone)."""


def orthogonal(stack: Tensor, rounds: int = 5) -> Tensor:
    """About the nearest orthogonal matrix of each in the stack (Newton-Schulz, quintic)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = stack.to(COMPUTED_IN)
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.transpose(1, 2) if tall else x).to(stack.dtype)


class Optimiser:
    """Steps a model; its state can be saved and taken back."""

    def __init__(self, model: nn.Module, matrix_rate: float, other_rate: float) -> None:
        self.matrix_rate = matrix_rate
        shapes: dict[torch.Size, list[nn.Parameter]] = {}
        rest: list[nn.Parameter] = []
        for name, p in model.named_parameters():
            if p.ndim == 2 and "embed" not in name:
                shapes.setdefault(p.shape, []).append(p)
            else:
                rest.append(p)
        self.groups = list(shapes.values())
        self.momenta = [torch.zeros(len(g), *g[0].shape) for g in self.groups]
        self.adam = torch.optim.AdamW(rest, lr=other_rate, betas=(0.9, 0.98), weight_decay=0.0)
        self.other_rate = other_rate

    @torch.no_grad()
    def step(self, share: float) -> None:
        """One step at `share` of the full rates; gradients are consumed."""
        for group, momentum in zip(self.groups, self.momenta, strict=True):
            grads = torch.stack([p.grad for p in group if p.grad is not None])
            momentum.lerp_(grads, 0.05)
            update = orthogonal(grads.lerp(momentum, 0.95))
            rows, columns = group[0].shape
            rate = self.matrix_rate * share * max(1.0, rows / columns) ** 0.5
            for p, u in zip(group, update, strict=True):
                p.mul_(1 - self.matrix_rate * share * 0.05).add_(u, alpha=-rate)
                p.grad = None
        for settings in self.adam.param_groups:
            settings["lr"] = self.other_rate * share
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        return {"momenta": self.momenta, "adam": self.adam.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` gave."""
        for mine, saved in zip(self.momenta, state["momenta"], strict=True):
            mine.copy_(saved)
        self.adam.load_state_dict(state["adam"])
