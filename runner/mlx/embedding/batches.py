"""Which prompts are computed together: by length, each padded batch within a budget of tokens.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence


def batches(lengths: Sequence[int], budget_tokens: int) -> list[list[int]]:
    """Return the numbers of all prompts, shortest first, in batches of which each has at most
    `budget_tokens` once its prompts are as long as its longest. One that is longer than the budget
    is computed alone."""
    found: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        # (in this order a batch's longest prompt is the one that joins it)
        if found and (len(found[-1]) + 1) * lengths[number] <= budget_tokens:
            found[-1].append(number)
        else:
            found.append([number])
    return found
