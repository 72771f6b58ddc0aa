"""In how many bits the KV of a model is held: the kinds, and the bytes that each really takes.

Pure. A value of KV is held in full width (as the model computes it), or in 8 or 4 bits of a group
of values that share a scale and an offset, which are as wide as the values were. The groups divide
each head: a value's code then depends on its own head of its own token alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

KvKind = Literal["full", "8bit", "4bit"]
KINDS: tuple[KvKind, ...] = get_args(KvKind)
BITS: Mapping[KvKind, int] = {"8bit": 8, "4bit": 4}
GROUPS = (64, 32)
"""Values that share a scale and an offset, the better first: larger groups take fewer bytes."""
NOT_YET: Mapping[str, str] = {
    "window": "a window with sinks is not there yet",
    "rotated": "rotated KV is not there yet",
}
OTHER_WORDS: Mapping[str, KvKind] = {
    "f16": "full", "fp16": "full", "bf16": "full", "f32": "full", "none": "full", "default": "full",
    "8": "8bit", "q8": "8bit", "q8_0": "8bit", "int8": "8bit", "8-bit": "8bit",
    "4": "4bit", "q4": "4bit", "q4_0": "4bit", "int4": "4bit", "4-bit": "4bit",
}  # fmt: skip
"""What other servers call the kinds."""


def not_a_kind(word: object) -> str | None:
    """Return what is wrong with a word for a kind of KV; None for one that is a kind."""
    text = str(word).lower()
    if word in KINDS:
        return None
    known = f"it is {', '.join(KINDS[:-1])} or {KINDS[-1]}"
    if text in NOT_YET:
        return f"{NOT_YET[text]}; {known}"
    if text in OTHER_WORDS:
        return f"{known}; {word} is {OTHER_WORDS[text]} here"
    return known


def group_of(*widths: int) -> int:
    """Return the values of a group for heads of these widths; 0 where none divides all of them."""
    return next((group for group in GROUPS if all(w and w % group == 0 for w in widths)), 0)


def held_bytes(full_bytes: int, kind: KvKind, value_bytes: int, group: int) -> int:
    """Return the bytes in which KV of `full_bytes` is held, scales and offsets included, rounded
    up. Values of `value_bytes` in groups of `group`; 0: it stays in full width."""
    if kind not in BITS or not group or not value_bytes:
        return full_bytes
    values = full_bytes // value_bytes
    return -(-values * BITS[kind] // 8) + 2 * value_bytes * (values // group)
