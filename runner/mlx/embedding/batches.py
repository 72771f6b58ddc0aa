"""Group prompts by length into padded batches within a token budget.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence


def batches(lengths: Sequence[int], budget_tokens: int) -> list[list[int]]:
    """Return batches of indices of prompts, shortest prompts first. `lengths` are the prompts'
    tokens. A batch has at most `budget_tokens` tokens, padding included: its number of prompts
    times its longest prompt. A prompt longer than the budget gets a batch of its own."""
    grouped: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        # (prompts are sorted, so the prompt that joins a batch is its longest)
        if grouped and (len(grouped[-1]) + 1) * lengths[number] <= budget_tokens:
            grouped[-1].append(number)
        else:
            grouped.append([number])
    return grouped
