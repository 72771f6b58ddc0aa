"""Group prompts by length into padded batches within a token budget.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence


def batches(lengths: Sequence[int], budget_tokens: int) -> list[list[int]]:
    """Return the indices of all prompts, shortest first, in batches. Each batch has at most
    `budget_tokens`, counting every prompt as long as its longest. A prompt longer than the budget
    is computed alone."""
    grouped: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        # (in this order a batch's longest prompt is the one that joins it)
        if grouped and (len(grouped[-1]) + 1) * lengths[number] <= budget_tokens:
            grouped[-1].append(number)
        else:
            grouped.append([number])
    return grouped
