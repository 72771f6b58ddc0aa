# pyright: reportUnknownMemberType=false
# (the arguments of some of tokenizers' functions are untyped)
"""Talks to the tokenizer of an embedding model: to its files, once, when they are opened, or to an
engine that has the tokenizer.

An input becomes the model's token ids, including the special tokens of its tokenizer. Nothing
changes after opening, so any thread may use it. Other threads run while a text is tokenised.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from bus.models.embedding_models import embedding_model
from bus.models.embedding_parts import EmbeddingModel
from bus.wire.errors import BadRequest, ContextOverflow
from runner.text.opening import TokenizerError, check_file, panics_told

CONFIG = "config.json"
MOST_BYTES = 16 << 20
"""Maximum size of a settings file of a model."""
MOST_SPECIAL = 16
TOKENIZER = "tokenizer.json"
Encode = Callable[[str, bool], list[int]]
"""Returns the token ids of a text; if the flag is set, with the special tokens around an input.
Raises TokenizerError."""


@dataclass(frozen=True, slots=True)
class EmbeddingFolder:
    """The settings in an embedding model's directory: its config.json, and how inputs become
    vectors."""

    config: Mapping[str, Any]
    model: EmbeddingModel


@dataclass(frozen=True, slots=True)
class EmbeddingPrompt:
    """The tokens of one input, special tokens included. `cut_off`: the end of the input was cut
    off."""

    tokens: tuple[int, ...]
    cut_off: bool


def open_embedding_folder(folder: Path) -> EmbeddingFolder:
    """Return the settings in an embedding model's directory. Raises TokenizerError, with the reason
    for people, if the directory has no embedding model or has unsupported settings."""
    config = _read(folder, CONFIG)
    if not isinstance(config, dict):
        raise TokenizerError(f"{folder.name}: {CONFIG} is missing or not a JSON object")
    settings = cast(dict[str, Any], config)
    try:
        model = embedding_model(settings, lambda name: _read(folder, name))
    except ValueError as error:
        raise TokenizerError(f"{folder.name}: {error}") from error
    if model is None:
        raise TokenizerError(f"{folder.name}: it generates text and is not an embedding model")
    return EmbeddingFolder(settings, model)


class EmbeddingInputs:
    """The tokeniser of an embedding model's inputs."""

    def __init__(
        self,
        encode: Encode,
        *,
        max_tokens: int,
        vocabulary: int,
        prompt: str = "",
        lower_case: bool = False,
    ) -> None:
        """An input has at most `max_tokens` tokens, special ones included. All ids are below
        `vocabulary`. `prompt` is put before each text. Raises TokenizerError if the special tokens
        alone fill an input."""
        self.max_tokens = max_tokens
        self._encode = encode
        self._vocabulary = vocabulary
        self._prompt = prompt
        self._lower_case = lower_case
        self._before, self._after = _around(encode)
        self._room = max_tokens - len(self._before) - len(self._after)
        if self._room < 1:
            raise TokenizerError(
                f"the tokenizer's special tokens fill all {max_tokens} tokens of an input"
            )

    @classmethod
    def load(cls, folder: Path, max_tokens: int | None = None) -> EmbeddingInputs:
        """Open the tokenizer of the model in `folder`. `max_tokens` may lower the model's own limit
        of tokens, but not raise it. Downloads nothing and runs no code from the folder. Raises
        TokenizerError."""
        opened = open_embedding_folder(folder)
        vocabulary = opened.config.get("vocab_size")
        if type(vocabulary) is not int or vocabulary < 1:
            raise TokenizerError(f"{folder.name}: {CONFIG}: vocab_size is not a positive number")
        model = opened.model
        return cls(
            _file_encoder(folder),
            max_tokens=min(model.max_tokens, max_tokens or model.max_tokens),
            vocabulary=vocabulary,
            prompt=model.prompt,
            lower_case=model.lower_case,
        )

    @classmethod
    def beside(
        cls, folder: Path, engine: Encode, *, max_tokens: int, vocabulary: int
    ) -> EmbeddingInputs:
        """Use the `tokenizer.json` in the folder of a GGUF file, else the tokenizer of its engine.
        The engine's tokenizer may raise OSError, here and in `prepare`. Raises TokenizerError."""
        has_file = (folder / TOKENIZER).is_file()
        encode = _file_encoder(folder) if has_file else engine
        try:
            return cls(encode, max_tokens=max_tokens, vocabulary=vocabulary)
        except OSError as error:
            raise TokenizerError(str(error)) from error

    def prepare(self, text: str | Sequence[int], cut: bool) -> EmbeddingPrompt:
        """Return the tokens of a text, or of token ids, with the model's special tokens around
        them. Ids that already have these special tokens get no second ones. `cut`: cut the end of
        an input that is too long.

        Raises ContextOverflow if the input is too long and not to be cut, and BadRequest for
        invalid ids, invalid Unicode and an empty input.
        """
        inner = self._encoded(text) if isinstance(text, str) else self._stripped(text)
        if len(inner) > self._room and not cut:
            whole = len(inner) + self.max_tokens - self._room
            raise ContextOverflow(prompt_tokens=whole, limit_tokens=self.max_tokens)
        tokens = (*self._before, *inner[: self._room], *self._after)
        if not tokens:
            raise BadRequest("an input must have at least one token")
        return EmbeddingPrompt(tokens, len(inner) > self._room)

    def _encoded(self, text: str) -> list[int]:
        text = self._prompt + text
        if lone_surrogate(text):
            raise BadRequest("the text contains half of a surrogate pair, which is not a character")
        try:
            return self._encode(text.lower() if self._lower_case else text, False)
        except TokenizerError as error:
            raise BadRequest(f"this text cannot be tokenised: {error}") from error

    def _stripped(self, tokens: Sequence[int]) -> list[int]:
        """Return the token ids without the special tokens that begin or end every input. Raises
        BadRequest for an invalid id."""
        for token in tokens:
            if type(token) is not int or not 0 <= token < self._vocabulary:
                raise BadRequest(
                    f"invalid token id {str(token)[:40]}: ids are 0 to {self._vocabulary - 1}"
                )
        stripped = list(tokens)
        if self._before and stripped[: len(self._before)] == self._before:
            stripped = stripped[len(self._before) :]
        if self._after and stripped[-len(self._after) :] == self._after:
            stripped = stripped[: -len(self._after)]
        return stripped


def lone_surrogate(text: str) -> bool:
    """Return whether a text has half of a surrogate pair, so that it is no valid Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def file_tokenizer(folder: Path) -> Tokenizer:
    """Open the `tokenizer.json` in a folder, without its truncation and padding. Raises
    TokenizerError."""
    path = folder / TOKENIZER
    try:
        if not path.exists():
            raise TokenizerError(f"{folder.name}: {TOKENIZER} is missing")
        check_file(path)
        with panics_told():
            tokenizer = Tokenizer.from_file(str(path))
    except TokenizerError:
        raise
    except Exception as error:  # the library's errors are plain Exceptions
        raise TokenizerError(f"{folder.name}: {TOKENIZER}: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _file_encoder(folder: Path) -> Encode:
    """Open the `tokenizer.json` in a folder. Raises TokenizerError."""
    tokenizer = file_tokenizer(folder)

    def encode(text: str, special: bool) -> list[int]:
        with panics_told():
            # (of the library's calls this one lets other threads run)
            return tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids

    return encode


def _around(encode: Encode) -> tuple[list[int], list[int]]:
    """Return the special tokens that the tokenizer puts before and after an input. Raises
    TokenizerError if it changes the input in another way, or adds more than `MOST_SPECIAL`."""
    bare, dressed = encode("a", False), encode("a", True)
    for at in range(len(dressed) - len(bare) + 1):
        if dressed[at : at + len(bare)] == bare:
            before, after = dressed[:at], dressed[at + len(bare) :]
            if len(before) + len(after) <= MOST_SPECIAL:
                return before, after
    raise TokenizerError(
        f"{TOKENIZER} must not change an input, except by at most {MOST_SPECIAL} special tokens "
        "before and after it"
    )


def _read(folder: Path, name: str) -> object:
    """Return the content of a JSON file of the model; None if there is none. Raises
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
        raise TokenizerError(f"{folder.name}: {name} is invalid: {error}") from error
    except OSError as error:
        raise TokenizerError(f"{folder.name}: {name} cannot be read: {error.strerror}") from error
