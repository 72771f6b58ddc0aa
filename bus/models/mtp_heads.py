"""The tensors of MTP (multi-token prediction) heads, by their names in checkpoints.

Pure: the caller reads the files. Two sets of names are known: those of Qwen3-Next (`mtp.*`), and
those of DeepSeek-V3 and GLM-4 MoE, whose head is a layer after the model's last one. In both, the
projection's input is the normed embedding of the next token, then the normed hidden state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MOST_DEPTH = 8
"""The most tokens that a head guesses in a row."""
EMBEDDING_NORM, HIDDEN_NORM = "embedding_norm", "hidden_norm"
PROJECTION, NORM, LAYER = "projection", "norm", "layer"
VOCABULARY = "vocabulary"
"""Tensors of a head that are copies of the model's own embedding and output projection. They are
not read."""
_QWEN: Mapping[str, str] = {
    "pre_fc_norm_embedding": EMBEDDING_NORM,
    "pre_fc_norm_hidden": HIDDEN_NORM,
    "fc": PROJECTION,
    "norm": NORM,
    "layers.0": LAYER,
    "embed_tokens": VOCABULARY,
    "lm_head": VOCABULARY,
}
_DEEPSEEK: Mapping[str, str] = {
    "enorm": EMBEDDING_NORM,
    "hnorm": HIDDEN_NORM,
    "eh_proj": PROJECTION,
    "shared_head.norm": NORM,
    "shared_head.head": VOCABULARY,
    "embed_tokens": VOCABULARY,
}
_MTP = re.compile(r"(?:^|\.)mtp\.(.+)")
_AFTER = re.compile(r"(?:^|\.)layers\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class HeadNames:
    """The tensors of one head. `parts`: by part, the tensor's name in the files by its name in that
    part, such as `weight`. `feeds_normed`: deeper guesses start from the head's normed output, not
    from its output before the norm. `unknown`: names that belong to no part."""

    parts: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    feeds_normed: bool = True
    unknown: tuple[str, ...] = ()

    @property
    def all(self) -> frozenset[str]:
        """Return the names in the files of all tensors that are read."""
        read = (names for part, names in self.parts.items() if part != VOCABULARY)
        return frozenset(name for names in read for name in names.values())


def head_names(names: Iterable[str], layers: int) -> HeadNames | None:
    """Return the head among the tensors of a model with `layers` layers, or of a sidecar folder;
    None if there is none. If there are several heads, it is the first."""
    qwen: dict[str, str] = {}
    after: dict[int, dict[str, str]] = {}
    for name in names:
        if (match := _MTP.search(name)) is not None:
            qwen[match[1]] = name
        elif (match := _AFTER.search(name)) is not None and int(match[1]) >= layers:
            after.setdefault(int(match[1]), {})[match[2]] = name
    if qwen:
        return _divided(qwen, _QWEN, None, feeds_normed=True)
    for number in sorted(after):
        if any(name.startswith("eh_proj.") for name in after[number]):
            return _divided(after[number], _DEEPSEEK, LAYER, feeds_normed=False)
    return None


def _divided(
    names: Mapping[str, str], parts: Mapping[str, str], others: str | None, *, feeds_normed: bool
) -> HeadNames:
    """Return the names of tensors, divided by the prefixes in `parts`. Names without such a prefix
    go to the part `others`; if that is None, they are returned as unknown."""
    divided: dict[str, dict[str, str]] = {}
    unknown: list[str] = []
    for name, full in names.items():
        part = next((prefix for prefix in parts if name.startswith(f"{prefix}.")), None)
        if part is not None:
            divided.setdefault(parts[part], {})[name[len(part) + 1 :]] = full
        elif others is not None:
            divided.setdefault(others, {})[name] = full
        else:
            unknown.append(full)
    return HeadNames(divided, feeds_normed, tuple(unknown))
