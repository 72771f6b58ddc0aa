# pyright: basic, reportMissingImports=false
"""From samples to rows of tokens with weights, grouped by length.

Pure. Rows of one small batch are about equally long, so little is padding; one step
takes small batches of different lengths, so that it sees every skill.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from tests.tiny_model.dice import Dice
from tests.tiny_model.render import spans
from tests.tiny_model.sample import Sample
from tests.tiny_model.text import Phase, training

NEW = "arithmetic"
"""The skill that a run with a teacher is to learn anew: there the teacher is not asked."""


@dataclass(frozen=True)
class Row:
    """One conversation: its tokens, how much each one's prediction counts, and whether the
    teacher of a distillation knows what it teaches."""

    ids: list[int]
    weights: list[float]
    old: bool = True


@dataclass(frozen=True)
class Batch:
    """Rows of similar length, padded on the right: tokens, next tokens, weights, each of shape
    [rows, length]; `old` of shape [rows] is 1 for rows of skills that the teacher has."""

    tokens: Any
    targets: Any
    weights: Any
    old: Any


def rows(tokenizer: Any, samples: list[Sample], longest: int) -> list[Row]:
    """Tokenised samples; those longer than `longest` are left out."""
    cut = [spans(sample) for sample in samples]
    texts = ["".join(part for part, _ in parts) for parts in cut]
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    out: list[Row] = []
    for sample, parts, code in zip(samples, cut, encoded, strict=True):
        if len(code.ids) <= longest:
            weights = _weights(parts, [start for start, _ in code.offsets])
            out.append(Row(list(code.ids), weights, sample.skill != NEW))
    return out


def _weights(parts: list[tuple[str, float]], starts: list[int]) -> list[float]:
    """Each token weighs what the span weighs in which it starts."""
    out: list[float] = []
    at, end, weight = -1, 0, 0.0
    for start in starts:
        while start >= end:
            at += 1
            end += len(parts[at][0])
            weight = parts[at][1]
        out.append(weight)
    return out


def batch(group: list[Row]) -> Batch:
    """One small batch."""
    width = -(-(max(len(r.ids) for r in group) - 1) // 8) * 8
    tokens = np.zeros((len(group), width), np.int64)
    targets = np.zeros((len(group), width), np.int64)
    weights = np.zeros((len(group), width), np.float32)
    for i, row in enumerate(group):
        n = len(row.ids) - 1
        tokens[i, :n], targets[i, :n], weights[i, :n] = row.ids[:-1], row.ids[1:], row.weights[1:]
    old = np.array([row.old for row in group], np.float32)
    return Batch(tokens, targets, weights, old)


def steps(
    tokenizer: Any, shard: int, phase: Phase, longest: int, size: int, per_step: int
) -> Iterator[list[Batch]]:
    """The steps of one shard of samples: `per_step` small batches of about `size` tokens each."""
    samples = list(islice(training(1000 + shard, phase), 2000))
    found = sorted(rows(tokenizer, samples, longest), key=lambda row: len(row.ids))
    groups: list[list[Row]] = [[]]
    for row in found:
        if groups[-1] and (len(groups[-1]) + 1) * len(row.ids) > max(size, len(row.ids)):
            groups.append([])
        groups[-1].append(row)
    order = Dice(shard).shuffled(groups)
    for at in range(0, len(order) - per_step + 1, per_step):
        yield [batch(group) for group in order[at : at + per_step]]
