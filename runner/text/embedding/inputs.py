# pyright: reportUnknownMemberType=false
# (the arguments of some of tokenizers' functions are untyped)
"""Talks to the tokenizer files of an embedding model's directory, once, when it is opened.

An input becomes the token ids that the model is given, with the special ones around it that its
tokenizer puts there. Nothing else changes after opening: any thread may ask. While a text is
tokenised other threads run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from bus.wire.embedding_models import EmbeddingModel, embedding_model
from bus.wire.errors import BadRequest, ContextOverflow
from runner.text.opening import TokenizerError, check_file, panics_told

CONFIG = "config.json"
MOST_BYTES = 16 << 20
"""What a file of a model's settings may have."""
MOST_SPECIAL = 16


@dataclass(frozen=True, slots=True)
class EmbeddingFolder:
    """What an embedding model's directory says: its config.json, and how inputs become vectors."""

    config: Mapping[str, Any]
    model: EmbeddingModel


@dataclass(frozen=True, slots=True)
class EmbeddingPrompt:
    """The tokens of one input, special ones included. `cut_off`: its end was left out."""

    tokens: tuple[int, ...]
    cut_off: bool


def open_embedding_folder(folder: Path) -> EmbeddingFolder:
    """Return what an embedding model's directory says. Raises TokenizerError, in words, where it is
    no such directory or says something that cannot be done."""
    config = _read(folder, CONFIG)
    if not isinstance(config, dict):
        raise TokenizerError(f"{folder.name}: {CONFIG} is missing or no JSON object")
    known = cast(dict[str, Any], config)
    try:
        model = embedding_model(known, lambda name: _read(folder, name))
    except ValueError as error:
        raise TokenizerError(f"{folder.name}: {error}") from error
    if model is None:
        raise TokenizerError(f"{folder.name}: it is a model of text, not of embeddings")
    return EmbeddingFolder(known, model)


class EmbeddingInputs:
    """The inputs of one embedding model, as tokens."""

    def __init__(self, tokenizer: Tokenizer, model: EmbeddingModel, vocabulary: int) -> None:
        """Take a tokenizer, which cuts and fills nothing up from here on. Tokens are below
        `vocabulary`. Raises TokenizerError where special tokens alone fill an input."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._model = model
        self._vocabulary = vocabulary
        self._before, self._after = _around(tokenizer)
        self._room = model.max_tokens - len(self._before) - len(self._after)
        if self._room < 1:
            raise TokenizerError(f"special tokens fill all {model.max_tokens} of an input")

    @classmethod
    def load(cls, folder: Path, max_tokens: int | None = None) -> EmbeddingInputs:
        """Open the tokenizer of the model in `folder`. `max_tokens` may lower, never raise, what an
        input may have. Nothing is fetched, no code that lies there is run. Raises
        TokenizerError."""
        opened = open_embedding_folder(folder)
        vocabulary = opened.config.get("vocab_size")
        if type(vocabulary) is not int or vocabulary < 1:
            raise TokenizerError(f"{folder.name}: {CONFIG}: vocab_size is no count of tokens")
        path = folder / "tokenizer.json"
        try:
            if not path.exists():
                raise TokenizerError(f"{folder.name}: it has no tokenizer.json")
            check_file(path)
            with panics_told():
                tokenizer = Tokenizer.from_file(str(path))
        except TokenizerError:
            raise
        except Exception as error:  # the library's errors are plain Exceptions
            raise TokenizerError(f"{folder.name}: tokenizer.json: {error}") from error
        model = opened.model
        if max_tokens is not None and max_tokens < model.max_tokens:
            model = replace(model, max_tokens=max_tokens)
        return cls(tokenizer, model, vocabulary)

    @property
    def max_tokens(self) -> int:
        """Return how many tokens an input may have, special ones included."""
        return self._model.max_tokens

    def prepare(self, text: str | Sequence[int], cut: bool) -> EmbeddingPrompt:
        """Return the tokens of a text, or of token ids, with the special ones that the model wants
        around them; ids that begin (or end) with these keep their own. `cut`: what is too long
        loses its end. Raises ContextOverflow where it is not to be cut, and BadRequest for ids that
        stand for no token, text that is no Unicode, and an input without a token."""
        inner = self._encoded(text) if isinstance(text, str) else self._stripped(text)
        if len(inner) > self._room and not cut:
            whole = len(inner) + self._model.max_tokens - self._room
            raise ContextOverflow(prompt_tokens=whole, limit_tokens=self._model.max_tokens)
        tokens = (*self._before, *inner[: self._room], *self._after)
        if not tokens:
            raise BadRequest("an input without a single token has no embedding")
        return EmbeddingPrompt(tokens, len(inner) > self._room)

    def _encoded(self, text: str) -> list[int]:
        text = self._model.prompt + text
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadRequest(
                "a text has half of a surrogate pair, which is no character"
            ) from error
        try:
            with panics_told():
                return _ids(self._tokenizer, text.lower() if self._model.lower_case else text)
        except TokenizerError as error:
            raise BadRequest(f"this text cannot be tokenised: {error}") from error

    def _stripped(self, tokens: Sequence[int]) -> list[int]:
        """Return token ids without the special ones around them."""
        for token in tokens:
            if type(token) is not int or not 0 <= token < self._vocabulary:
                raise BadRequest(f"{str(token)[:40]} is no token: 0 to {self._vocabulary - 1} are")
        found = list(tokens)
        if self._before and found[: len(self._before)] == self._before:
            found = found[len(self._before) :]
        if self._after and found[-len(self._after) :] == self._after:
            found = found[: -len(self._after)]
        return found


def _around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the special tokens before and after an input. Raises TokenizerError."""
    bare, dressed = (_ids(tokenizer, "a", special=special) for special in (False, True))
    for at in range(len(dressed) - len(bare) + 1):
        if dressed[at : at + len(bare)] == bare:
            before, after = dressed[:at], dressed[at + len(bare) :]
            if len(before) + len(after) <= MOST_SPECIAL:
                return before, after
    raise TokenizerError("tokenizer.json puts no text, or too much of its own, into an input")


def _ids(tokenizer: Tokenizer, text: str, *, special: bool = False) -> list[int]:
    # (of the library's calls this one lets other threads run)
    return tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids


def _read(folder: Path, name: str) -> object:
    """Return what a JSON file of the model's holds; None where there is none. Raises
    TokenizerError."""
    path = folder / name
    try:
        if not path.is_file():
            return None
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise TokenizerError(f"{folder.name}: {name} is larger than {MOST_BYTES >> 20} MiB")
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{folder.name}: {name} is broken: {error}") from error
    except OSError as error:
        raise TokenizerError(f"{folder.name}: {name} cannot be read: {error.strerror}") from error
