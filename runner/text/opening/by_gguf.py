# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# (the arguments of some functions of tokenizers' are untyped)
"""Talks to the disk: opens the tokenizer of a GGUF file.

A `tokenizer.json` beside the file is used; it must have the file's vocabulary and merges. Else a
byte-level BPE tokenizer is built from the file, if the way in which it splits text is in `SPLITS`.
It must encode as llama-server does, which does not normalise text; the runner compares both.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from bus.models.gguf import BadGguf, read_header
from runner.library import tokenizer_utils
from runner.text.opening.alone import PlainTokenizer, library_marks
from runner.text.opening.opened import OpenedTokenizer, Templates, TokenizerError

SIDE_FILE = "tokenizer.json"
_TOKENS, _TYPES, _MERGES = (f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "merges"))
_TEMPLATE = "tokenizer.chat_template"
_UNKNOWN, _CONTROL, _USER = 2, 3, 4
"""Types of tokens: the one for unknown text, markers without text, and markers with text."""
_ENDS = ("eos", "eot", "eom")
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS: Mapping[str, str] = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "qwen2": _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _LINES,
    "qwen35": _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    + _LINES,
    "llama-bpe": _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    + _LINES,
}
"""The expressions by which tokenizers split text, by their names in `tokenizer.ggml.pre`."""
_ANOTHER = f"put the {SIDE_FILE} of the original model into the folder, or none"
WHOLE_WORDS = ("llama-bpe",)
"""Tokenizers in which a word that is a token is not built from merges."""


def open_gguf(file: Path, form: str | None) -> OpenedTokenizer:
    """Return the tokenizer of a GGUF file. `form` names the tool call format; None: as the template
    says. Raises TokenizerError."""
    try:
        with open(file, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            metadata = read_header(stream, size, (_TOKENS, _TYPES, _MERGES)).metadata
    except BadGguf as error:
        raise TokenizerError(f"{file.name}: {error}") from error
    tokens = _texts(metadata, _TOKENS)
    beside = file.parent / SIDE_FILE
    backend = (
        _beside(beside, metadata, tokens)
        if beside.is_file()
        else _built(file.name, metadata, tokens)
    )
    plain = PlainTokenizer(backend, _templates(metadata))
    ids = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", *_ENDS)}
    valid = {
        name: index
        for name, index in ids.items()
        if isinstance(index, int) and 0 <= index < len(tokens)
    }
    return OpenedTokenizer(
        backend=backend,
        encode=plain.encode,
        decode=plain.decode,
        special_tokens={
            f"{name}_token": tokens[valid[name]] for name in ("bos", "eos") if name in valid
        },
        end_ids=frozenset(valid[name] for name in _ENDS if name in valid),
        templates=plain.chat_template,
        has_template=plain.chat_template is not None,
        marks=library_marks(plain, form),
        streaming=lambda: tokenizer_utils.NaiveStreamingDetokenizer(plain),
    )


def _beside(path: Path, metadata: Mapping[str, object], tokens: Sequence[str]) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json` with these tokens and the file's merges."""
    try:
        backend = Tokenizer.from_file(str(path))
        stored = json.loads(path.read_text(encoding="utf-8"))["model"].get("merges") or ()
        own = [" ".join(merge) if isinstance(merge, list) else merge for merge in stored]
    except Exception as problem:  # the library raises plain Exception
        raise TokenizerError(f"{path.name} is invalid: {problem}; {_ANOTHER}") from problem
    backend.no_truncation()
    backend.no_padding()
    for token, index in backend.get_vocab(with_added_tokens=True).items():
        if not 0 <= index < len(tokens) or tokens[index] != token:
            there = repr(tokens[index]) if index < len(tokens) else "missing"
            raise TokenizerError(
                f"{path.name} does not belong to the GGUF file: its token {index} is {token!r}, "
                f"and that of the file is {there}; {_ANOTHER}"
            )
    if _MERGES in metadata and own != list(_texts(metadata, _MERGES)):
        raise TokenizerError(
            f"{path.name} does not belong to the GGUF file: its merges differ; {_ANOTHER}"
        )
    return backend


def _built(name: str, metadata: Mapping[str, object], tokens: Sequence[str]) -> Tokenizer:
    """Return a byte-level BPE tokenizer built from the metadata."""
    kind, pre = metadata.get("tokenizer.ggml.model"), str(metadata.get("tokenizer.ggml.pre"))
    if kind != "gpt2" or pre not in SPLITS:
        raise TokenizerError(
            f"shoal cannot build the tokenizer of {name} (kind {kind}, splitting {pre}); put the "
            f"{SIDE_FILE} of the original model into the folder"
        )
    types = metadata.get(_TYPES, ())
    types = types if isinstance(types, tuple) else ()
    merges = [tuple(merge.split(" ", 1)) for merge in _texts(metadata, _MERGES)]
    pairs = [(pair[0], pair[1]) for pair in merges if len(pair) == 2]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    try:
        backend = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=pre in WHOLE_WORDS))
    except Exception as problem:  # the library raises plain Exception
        raise TokenizerError(f"{name}: its merges are invalid: {problem}") from problem
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLITS[pre]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(
        [
            AddedToken(token, special=kind == _CONTROL, normalized=False)
            for token, kind in zip(tokens, types, strict=False)
            if kind in (_CONTROL, _USER, _UNKNOWN)
        ]
    )
    backend.post_processor = _begun(metadata, tokens)
    return backend


def _begun(metadata: Mapping[str, object], tokens: Sequence[str]) -> processors.TemplateProcessing:
    """Return the post-processor that puts the beginning-of-sequence token before raw prompts if the
    file says so. Otherwise it adds nothing."""
    begins, index = (
        metadata.get("tokenizer.ggml.add_bos_token"),
        metadata.get("tokenizer.ggml.bos_token_id"),
    )
    if begins is not True or not isinstance(index, int) or not 0 <= index < len(tokens):
        return processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
    token = tokens[index]
    return processors.TemplateProcessing(
        single=[token, "$A"], pair=[token, "$A", "$B"], special_tokens=[(token, index)]
    )


def _templates(metadata: Mapping[str, object]) -> Templates:
    """Return the chat template, or several by name."""
    named = {
        key.removeprefix(f"{_TEMPLATE}."): text
        for key, text in metadata.items()
        if key.startswith(f"{_TEMPLATE}.") and isinstance(text, str)
    }
    default = metadata.get(_TEMPLATE)
    if not isinstance(default, str):
        return named or None
    return {"default": default, **named} if named else default


def _texts(metadata: Mapping[str, object], key: str) -> Sequence[str]:
    value = metadata.get(key)
    if not isinstance(value, tuple) or not all(isinstance(text, str) for text in value):
        raise TokenizerError(f"the GGUF file has no list of texts named {key}")
    return value
