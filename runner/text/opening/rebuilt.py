# pyright: reportUnknownMemberType=false
# (some attributes of tokenizers' classes are untyped)
"""Tokenizers that transformers rebuilds from parts of `tokenizer.json` with an unchanged result.

Pure. For Qwen's families, transformers takes the vocabulary, merges and post-processor from the
file and writes everything else itself. If the file has exactly what transformers would write, shoal
reads the file as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer

from runner.text.opening.settings import PLAIN, TokenizerSettings, Unsure

ENDS = dict.fromkeys(("unk_token", "eos_token", "pad_token"), "<|endoftext|>")
"""The special tokens that transformers' tokenizer classes for Qwen use by default."""
_SPLITS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?%s+|\p{N}| ?[^\s%s\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """A class of transformers that rebuilds a tokenizer. `splits` is the pattern by which the class
    splits text. `marks_special`: in the end the class adds all special tokens again, marked as
    special."""

    name: str
    splits: str
    marks_special: bool


QWEN_2 = Rebuilding("Qwen2Tokenizer", _SPLITS % (r"\p{L}", r"\p{L}"), marks_special=True)
QWEN_3_5 = Rebuilding(
    "Qwen3_5Tokenizer", _SPLITS % (r"[\p{L}\p{M}]", r"\p{L}\p{M}"), marks_special=False
)
FORCED: Mapping[str, Rebuilding] = {
    "qwen2": QWEN_2,
    "qwen3_5": QWEN_3_5,
    "qwen3_5_moe": QWEN_3_5,
    "qwen3_5_moe_text": QWEN_3_5,
}
"""Maps a model family to the class that transformers uses for it, even if the tokenizer's settings
name another class."""
NAMED_SO: Mapping[str, Rebuilding] = dict.fromkeys(
    ("qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"), QWEN_2
)
"""Maps a model family to the class that transformers uses for it if the tokenizer's settings name
that class."""


def rebuilding_of(config: Mapping[str, Any], settings: Mapping[str, Any]) -> Rebuilding | None:
    """Return the transformers class that would rebuild this model's tokenizer from parts; None if
    none would."""
    family, named = str(config.get("model_type")), settings.get("tokenizer_class")
    if not isinstance(named, str) or "_name_or_path" in config or "model_name" in config:
        return None
    names = PLAIN | {QWEN_2.name, QWEN_3_5.name, f"{QWEN_2.name}Fast", f"{QWEN_3_5.name}Fast"}
    if family in FORCED:
        return FORCED[family] if named in names else None
    rebuilding = NAMED_SO.get(family)
    return (
        rebuilding
        if rebuilding is not None and named.removesuffix("Fast") == rebuilding.name
        else None
    )


def check_parts(
    backend: Tokenizer, rebuilding: Rebuilding, raw: Mapping[str, Any], settings: TokenizerSettings
) -> None:
    """Raise Unsure if a file lacks the parts that transformers would write. `raw` are the
    tokenizer's unprocessed settings."""
    model: Any = backend.model
    if type(model).__name__ != "BPE":
        raise Unsure("the tokenizer's model is not BPE")
    if any((model.dropout, model.unk_token, model.continuing_subword_prefix)):
        raise Unsure("the tokenizer's BPE settings are not those of Qwen")
    if any((model.end_of_word_suffix, model.fuse_unk, model.byte_fallback, model.ignore_merges)):
        raise Unsure("the tokenizer's BPE settings are not those of Qwen")
    cuts = [
        {"type": "Split", "pattern": {"Regex": rebuilding.splits}, "behavior": "Isolated",
         "invert": False},
        {"type": "ByteLevel", "add_prefix_space": bool(raw.get("add_prefix_space")),
         "use_regex": False},
    ]  # fmt: skip
    if _part(backend.pre_tokenizer) != {"type": "Sequence", "pretokenizers": cuts}:
        raise Unsure("the tokenizer splits text differently from Qwen")
    if _part(backend.normalizer) != {"type": "NFC"}:
        raise Unsure("the tokenizer normalises text differently from Qwen")
    if _part(backend.decoder).get("type") != "ByteLevel":
        raise Unsure("the tokenizer's decoder is not that of Qwen")
    _check_added(backend, settings)


def _check_added(backend: Tokenizer, settings: TokenizerSettings) -> None:
    """Raise Unsure if added tokens would get other ids than in the file when they are added one by
    one, or if the settings add tokens that the file lacks."""
    present: dict[int, AddedToken] = backend.get_added_tokens_decoder()
    if settings.added is not None and _shown(settings.added) != _shown(present):
        raise Unsure("the tokenizer's settings and tokenizer.json list different added tokens")
    vocabulary = backend.get_vocab(with_added_tokens=False)
    following = len(vocabulary)
    for index, token in sorted(present.items()):
        if vocabulary.get(token.content, following) != index:
            raise Unsure("there are gaps between the ids of added tokens")
        following += token.content not in vocabulary


def _shown(added: Mapping[int, AddedToken]) -> dict[int, str]:
    return {index: repr(token) for index, token in added.items()}


def _part(part: Any) -> dict[str, Any]:
    """Return a part of a tokenizer as in its file, without keys that only affect text offsets."""
    if part is None:
        return {}
    return json.loads(
        part.__getstate__(),
        object_hook=lambda entry: {k: v for k, v in entry.items() if k != "trim_offsets"},
    )
