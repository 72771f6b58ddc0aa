# pyright: basic, reportMissingImports=false
"""Talks to processes: small batches of one step are shared out among single-threaded workers.

Each worker takes the next small batch as soon as it is free, so a core that someone
else is using delays the step by one small batch at most, where threads that meet at
every matrix product would all wait. Weights and gradients lie in shared memory; only
the owner of the crew changes weights, and only while no worker works.
"""

from __future__ import annotations

import queue
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, multiprocessing

from tests.tiny_model.batches import Batch
from tests.tiny_model.model import Qwen3, Shape, Taught
from tests.tiny_model.optimiser import COMPUTED_IN

PATIENCE_S = 600.0


def work(
    shape: Shape, weights: dict[str, Tensor], flat: Tensor, asks: Any, says: Any, before: Any
) -> None:
    """A worker's life: add the gradients of each small batch to its own buffer.

    `before` holds the weights of a teacher, or is None.
    """
    torch.set_num_threads(1)
    model = Qwen3(shape)
    at = 0
    for name, p in model.named_parameters():
        p.data = weights[name]
        p.grad = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    teacher = None
    if before is not None:
        teacher = Qwen3(shape)
        teacher.load_state_dict(before)
    while (asked := _next(asks)) is not None:
        b, whole = asked
        tokens, targets, counts = (torch.from_numpy(x) for x in (b.tokens, b.targets, b.weights))
        with torch.autocast("cpu", torch.bfloat16, enabled=COMPUTED_IN is torch.bfloat16):
            taught = Taught(teacher, torch.from_numpy(b.old)) if teacher is not None else None
            loss = model.loss(tokens, targets, counts, taught) / whole
        loss.backward()
        says.put(loss.item())


def _next(asks: Any) -> Any:
    """The next small batch, or None when there is no more work or no owner."""
    owner = multiprocessing.parent_process()
    while owner is not None and owner.is_alive():
        with suppress(queue.Empty):
            return asks.get(timeout=5.0)
    return None


class Crew:
    """Workers over one set of shared weights."""

    def __init__(
        self,
        shape: Shape,
        weights: dict[str, Tensor],
        size: int,
        before: dict[str, Tensor] | None = None,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        total = sum(p.numel() for p in weights.values())
        self.flats = [torch.zeros(total).share_memory_() for _ in range(size)]
        self.asks, self.says = context.Queue(), context.Queue()
        self.workers = [
            context.Process(
                target=work,
                args=(shape, weights, flat, self.asks, self.says, before),
                daemon=True,
            )
            for flat in self.flats
        ]
        for worker in self.workers:
            worker.start()

    def begin(self, group: list[Batch]) -> int:
        """Hand out the small batches of one step, largest first; how many there are."""
        whole = float(sum(b.weights.sum() for b in group))
        for b in sorted(group, key=lambda b: -b.tokens.size):
            self.asks.put((b, whole))
        return len(group)

    def end(self, count: int) -> tuple[float, Tensor]:
        """Wait for the step: its loss and its gradients, one after the other in one tensor."""
        try:
            loss = sum(self.says.get(timeout=PATIENCE_S) for _ in range(count))
        except queue.Empty as none:
            raise RuntimeError(f"no worker answered within {PATIENCE_S:.0f} s") from none
        gradient = self.flats[0].clone()
        for flat in self.flats[1:]:
            gradient += flat
        for flat in self.flats:
            flat.zero_()
        return loss, gradient

    def dismiss(self) -> None:
        """Let the workers end."""
        for _ in self.workers:
            self.asks.put(None)
        for worker in self.workers:
            worker.join(timeout=30)
