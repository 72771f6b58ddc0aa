# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false
# (the arguments of some functions of tokenizers' and mlx-lm's are untyped)
"""Talks to the disk: reads a tokenizer's files with `tokenizers` alone, as transformers would.

If the result might differ from transformers', nothing is read (`settings`). The facts that mlx-lm
keeps about a tokenizer are derived by mlx-lm's own functions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken, Tokenizer, processors

from runner.library import tokenizer_defaults, tokenizer_utils
from runner.text.families import LibraryMarks
from runner.text.opening.opened import OpenedTokenizer, Templates, marks
from runner.text.opening.rebuilt import ENDS, check_parts, rebuilding_of
from runner.text.opening.settings import (
    TokenizerSettings,
    Unsure,
    check_family,
    read_settings,
    templates_of,
    tokens_to_add,
)
from runner.text.opening.sidecar import sidecar_template

OTHER_FILES = ("tekken.json",)
"""If the model directory has one of these files, transformers may use another tokenizer class than
the settings name."""
WITHOUT_ADDED = ("added_tokens.json", "special_tokens_map.json")
"""Files that transformers reads if `tokenizer_config.json` does not list the added tokens."""


def open_alone(path: Path, overrides: Mapping[str, str], end_ids: Sequence[int]) -> OpenedTokenizer:
    """Return the content of the files in `path`. `overrides` are settings for mlx-lm's parsers, and
    take precedence over those in the files. Raises Unsure if transformers might read the files
    differently, and errors of broken files."""
    raw = _object(path / "tokenizer_config.json")
    config = _object(path / "config.json")
    rebuilding = rebuilding_of(config, raw)
    if rebuilding is None:
        check_family(config, raw)
    settings = read_settings(raw if rebuilding is None else {**ENDS, **raw})
    others = OTHER_FILES if settings.added is not None else OTHER_FILES + WITHOUT_ADDED
    if other := next((name for name in others if (path / name).exists()), None):
        raise Unsure(f"the tokenizer's folder contains {other}")
    if tokenizer_defaults(path):
        raise Unsure("mlx-lm has special settings for this family")
    backend, special = _backend(path / "tokenizer.json", settings)
    if rebuilding is not None:
        check_parts(backend, rebuilding, raw, settings)
    _add(backend, settings, special)
    if rebuilding is not None and rebuilding.marks_special:
        texts = dict.fromkeys(map(str, (*special.values(), *settings.extra)))
        backend.add_tokens([AddedToken(text, special=True) for text in texts])
    if settings.cleans_spaces and type(backend.model).__name__ != "BPE":
        raise Unsure("the tokenizer removes spaces from its text")
    plain = PlainTokenizer(backend, _templates(path, settings))
    ends = {*end_ids, *([plain.token_id(special["eos_token"])] if "eos_token" in special else [])}
    return OpenedTokenizer(
        backend=backend,
        encode=plain.encode,
        decode=plain.decode,
        special_tokens={name: str(token) for name, token in special.items()},
        end_ids=frozenset(ends),
        templates=plain.chat_template,
        has_template=plain.chat_template is not None,
        marks=library_marks(plain, overrides.get("tool_parser_type", settings.parser)),
        streaming=lambda: tokenizer_utils.NaiveStreamingDetokenizer(plain),
    )


def library_marks(plain: Any, form: str | None) -> LibraryMarks:
    """Return mlx-lm's facts about a tokenizer's output: `plain` has `chat_template` and
    `get_vocab`. `form` names the tool call format."""
    start, end, *_ = tokenizer_utils._infer_thinking(plain)
    form = tokenizer_utils._infer_tool_parser(plain) if form is None else form
    if form is None:
        return LibraryMarks(think=marks(start, end))
    parser = import_module(f"mlx_lm.tool_parsers.{form}")
    return LibraryMarks(
        think=marks(start, end),
        calls=marks(parser.tool_call_start, parser.tool_call_end),
        format=form,
        parse=lambda text, tools: parser.parse_tool_call(text, list(tools) or None),
    )


class PlainTokenizer:
    """A tokenizer with the transformers methods that mlx-lm's functions call."""

    def __init__(self, backend: Tokenizer, chat_template: Templates) -> None:
        self._backend = backend
        self.chat_template = chat_template

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the token ids of a text. Releases the GIL, so other threads run meanwhile."""
        encodings = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return encodings[0].ids

    def decode(self, tokens: list[int]) -> str:
        """Return the text of token ids, in which special tokens appear by name."""
        return self._backend.decode(tokens, skip_special_tokens=False)

    def get_vocab(self) -> dict[str, int]:
        """Return the ids of all tokens, added ones included."""
        return self._backend.get_vocab(with_added_tokens=True)

    def token_id(self, token: str | AddedToken) -> int:
        """Return the id of a special token. Raises Unsure if it has none."""
        index = self._backend.token_to_id(str(token))
        if index is None:
            raise Unsure(f"{token} has no id")
        return index


def _object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises OSError, ValueError and Unsure."""
    content: object = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise Unsure(f"{path.name} is not an object")
    return cast(dict[str, Any], content)


def _backend(
    path: Path, settings: TokenizerSettings
) -> tuple[Tokenizer, dict[str, str | AddedToken]]:
    """Return the tokenizer in a file, and the special tokens by name, as the settings or the file
    describe them."""
    backend = Tokenizer.from_file(str(path))
    if backend.padding is not None:
        raise Unsure("tokenizer.json pads short inputs and names a token for that")
    backend.no_truncation()
    present = backend.get_added_tokens_decoder()
    described = present if settings.added is None else settings.added
    by_text = {token.content: token for _, token in sorted(described.items())}
    special = {name: by_text.get(str(token), token) for name, token in settings.special.items()}
    return backend, special


def _add(
    backend: Tokenizer, settings: TokenizerSettings, special: Mapping[str, str | AddedToken]
) -> None:
    added = tokens_to_add(settings, special, backend.get_added_tokens_decoder())
    if added:
        backend.add_tokens(added)
    if backend.post_processor is None:
        bare = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
        cast(Any, backend).post_processor = bare


def _templates(path: Path, settings: TokenizerSettings) -> Templates:
    """Return the chat templates; separate files override the settings."""
    files: dict[str, Path] = {}
    if (path / "chat_template.jinja").is_file():
        files["default"] = path / "chat_template.jinja"
    for file in (path / "additional_chat_templates").glob("*.jinja"):
        files[file.name.removesuffix(".jinja")] = file
    texts = {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    if texts.keys() == {"default"}:
        return texts["default"]
    return texts or templates_of(settings.chat_template) or sidecar_template(path)
