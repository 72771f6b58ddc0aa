# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# (tokenizers' and llguidance's functions are partly untyped)
"""Talks to the tokenizer files of one model directory, once, when it is opened.

`runner.text.opening` reads them. This class provides: encoding, chat templates, the bytes of every
token, the markers of thinking and of tool calls, the end-of-sequence ids, and llguidance's view of
the vocabulary. Code from the model directory is never run here; its templates are, by
`runner.text.rendering`, in a process of their own. Nothing changes after opening, so any thread may
use it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from llguidance import LLTokenizer
from tokenizers import decoders

from runner.text.detokenise import Detokeniser, TokenTable, WholeTextDetokeniser
from runner.text.families import (
    FOUND,
    Family,
    Parsers,
    effort_levels,
    family_of,
)
from runner.text.markup import AddedText, Markup, Span, Twin, find_markup
from runner.text.opening import (
    SIDECAR,
    TokenizerError,
    open_tokenizer,
    panics_told,
    template_for,
)
from runner.text.rendering import Renderer
from runner.text.template import FILL_IN, marked, up_to_mark

TEMPLATE_CHARACTERS = 1 << 20
_TRIED = "to be\nor not"
"""A test text. It shows whether the tokenizer's decoder turns byte-level tokens into the original
text."""


class ModelTokenizer:
    """The tokenizer of one model. `vocabulary` is the width of the model's logits; `added_ids` are
    the ids of added tokens by their text."""

    def __init__(
        self,
        path: Path,
        *,
        vocabulary: int | None = None,
        parsers: Parsers = FOUND,
        special_tokens_in_messages: bool = False,
    ) -> None:
        """Open the tokenizer in the folder `path`. `vocabulary` None: the value in the folder's
        `config.json`. `parsers` read the model's output. `special_tokens_in_messages`: special
        tokens that a message spells out become tokens, not text. Downloads nothing and runs no code
        from the directory. Raises TokenizerError."""
        if not path.is_dir():
            raise TokenizerError(f"{path} is not a directory with a model in it")
        files = [
            path / "chat_template.jinja",
            path / SIDECAR,
            *path.glob("additional_chat_templates/*.jinja"),
        ]
        _check_templates(sum(file.stat().st_size for file in files if file.is_file()) // 4, path)
        config = _read_json(path / "config.json")
        generation = _read_json(path / "generation_config.json")
        ends = [
            end
            for settings in (generation, config, config.get("text_config"))
            for end in _ends(settings)
        ]
        self._opened = open_tokenizer(path, _parser_settings(parsers), list(dict.fromkeys(ends)))
        self._backend: Any = self._opened.backend
        self.facts: dict[str, str] = {}
        """Facts about the model's files, as text keyed by subject."""
        if _mend_decoder(self._backend):
            self.facts["decoder"] = (
                "byte-level; the model's files declare no decoder or a wrong one"
            )
        self._added: dict[int, Any] = self._backend.get_added_tokens_decoder()
        self._contents = {index: str(token.content) for index, token in self._added.items()}
        self.added_ids = {text: index for index, text in self._contents.items()}
        stated = vocabulary or _vocabulary(config)
        self._tokens: int = self._backend.get_vocab_size(with_added_tokens=True)
        self.vocabulary: int = stated or self._tokens
        self.eos_token_ids: frozenset[int] = frozenset(
            index for index in self._opened.end_ids if 0 <= index < self.vocabulary
        )
        self.facts["ends"] = ", ".join(
            f"{index} ({self._backend.id_to_token(index)})" for index in sorted(self.eos_token_ids)
        )
        self.has_template = self._opened.has_template
        self._renderer = Renderer()
        templates_setting = self._opened.templates
        templates = (
            [*templates_setting.values()]
            if isinstance(templates_setting, Mapping)
            else [templates_setting or ""]
        )
        _check_templates(sum(map(len, templates)), path)
        self.family: Family = family_of(
            "\n".join(templates), self.added_ids, self._opened.marks, parsers
        )
        self.efforts = effort_levels("\n".join(templates))
        self.markup = Markup()
        """The control tokens that stay plain text if a message spells them out."""
        if special_tokens_in_messages:
            self.facts["special tokens"] = "the card allows markup in messages to become tokens"
        else:
            self.markup = self._find_markup("\n".join(templates))
        self.table: TokenTable | None = self._token_table()
        self.longest_token: int = max(map(len, self._backend.get_vocab()), default=1) * 4
        """The most characters of text for which one token can stand. It is the longest token name
        times four, because normalisers may shorten text."""

    def encode(
        self, text: str, *, special: bool = False, spelled: Sequence[Span] = ()
    ) -> list[int]:
        """Return the token ids of `text`. Markup of added tokens in it becomes those tokens, except
        at `spelled` (`runner.text.markup.spans_in`), which is text. `special` adds the tokens that
        the tokenizer puts around a raw prompt (a beginning-of-sequence token)."""
        with panics_told():
            if not spelled:
                return self._opened.encode(text, special)
            return self._twin.encode(text, spelled, special=special)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, special tokens by name. Partial characters become U+FFFD;
        invalid ids are left out."""
        return cast(str, self._backend.decode(list(tokens), skip_special_tokens=False))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        thinking: bool,
        continue_final: bool,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text that the chat template makes. `variables` are additional variables of the
        template; library code that replaces a template ignores them. Raises TemplateError and
        TemplateStopped of `runner.text.rendering`, and ValueError if the model has no suitable
        template."""
        given = [dict(tool) for tool in tools] or None
        if self._opened.own_prompt is not None:
            return self._opened.own_prompt(
                [dict(message) for message in messages],
                tools=given,
                add_generation_prompt=not continue_final,
                continue_final_message=continue_final,
                enable_thinking=thinking,
                tokenize=False,
            )
        data = {
            **(variables or {}),
            **self._opened.special_tokens,
            self._opened.thinking_variable: thinking,
            "messages": self.family.messages(marked(messages) if continue_final else messages),
            "tools": given,
            "documents": None,
            "add_generation_prompt": not continue_final,
        }
        template = template_for(self._opened.templates, tools=given is not None)
        text = self._renderer.render(template, data)
        return up_to_mark(text, messages[-1]) if continue_final else text

    @property
    def bos_token_id(self) -> int | None:
        """Return the id of the beginning-of-sequence token; None if there is none."""
        name = self._opened.special_tokens.get("bos_token")
        return None if name is None else self.token_id(name)

    def token_id(self, text: str) -> int | None:
        """Return the id of the added token whose text is exactly `text`; None if there is none."""
        return self.added_ids.get(text)

    def token_text(self, token: int) -> str:
        """Return the text of one token alone, for log-probabilities; partial characters become
        U+FFFD, special tokens go by name."""
        named = self._contents.get(token)
        if named is not None:
            return named
        if self.table is None:
            return self._opened.decode([token]) if token < self._tokens else ""
        bytes_of = self.table.bytes_of
        return bytes_of[token].decode("utf-8", "replace") if token < len(bytes_of) else ""

    def detokeniser(self, *, begins: bool) -> Detokeniser:
        """Return a new streaming detokeniser for one choice, from its first token. `begins`: the
        output is a text of its own, not a continuation."""
        if self.table is not None:
            return self.table.detokeniser(begins=begins)
        return WholeTextDetokeniser(self._opened.streaming(), self._hidden())

    @property
    def strips_space(self) -> bool:
        """Return whether the first space of an output belongs to the tokenizer."""
        return self.table is not None and self.table.strips_space

    @cached_property
    def guide(self) -> LLTokenizer:
        """Return llguidance's tokenizer: its masks are exactly `vocabulary` wide. Takes up to a
        second for large vocabularies; cached."""
        try:
            with panics_told():
                return LLTokenizer(
                    self._backend.to_str(),
                    n_vocab=self.vocabulary,
                    eos_token=sorted(self.eos_token_ids) or None,
                )
        except Exception as problem:
            raise TokenizerError(
                f"this tokenizer does not support grammars: {problem}"
            ) from problem

    @cached_property
    def _twin(self) -> Twin:
        try:
            return Twin(self._backend, self.markup, secrets.token_hex(8))
        except Exception as problem:
            raise TokenizerError(
                f"markup cannot be distinguished from its text: {problem}"
            ) from problem

    def _find_markup(self, written: str) -> Markup:
        marks = self.family.think, self.family.calls
        own = [text for mark in marks if mark for text in (mark.start, mark.end)]
        if any(text in self.added_ids for text in own):
            own += self.family.inner
        added = (
            AddedText(str(token.content), bool(token.special), bool(token.single_word))
            for token in self._added.values()
        )
        texts = "\n".join([written, *(text for family in FILL_IN for text in family)])
        return find_markup(added, texts, own)

    def _hidden(self) -> frozenset[int]:
        """Return the special tokens whose text never appears in the output. Markers are excluded,
        because they are parsed as text."""
        inside = "\n".join(self.family.markers)
        return frozenset(
            index
            for index, token in self._added.items()
            if token.special and token.content not in inside
        )

    def _token_table(self) -> TokenTable | None:
        backend_decoder: Any = self._backend.decoder
        decoder: Any = (
            None if backend_decoder is None else json.loads(backend_decoder.__getstate__())
        )
        vocab: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        names = [""] * (max(vocab.values(), default=-1) + 1)
        for name, index in vocab.items():
            names[index] = name
        return TokenTable.build(
            names,
            decoder,
            added={index: text.encode() for index, text in self._contents.items()},
            hidden=self._hidden(),
        )


def _parser_settings(parsers: Parsers) -> dict[str, str]:
    """Return the settings by which mlx-lm uses the parser of calls that `parsers` names; no
    settings leave the choice to mlx-lm."""
    return {"tool_parser_type": parsers.library} if parsers.library else {}


def _read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if the file does not exist. Raises
    TokenizerError."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise TokenizerError(f"{path} is not JSON: {problem}") from problem
    return cast(dict[str, Any], content) if isinstance(content, dict) else {}


def _ends(settings: object) -> list[int]:
    """Return the ids of end tokens from a setting, which may be one id or a list."""
    value = (
        cast(Mapping[str, object], settings).get("eos_token_id")
        if isinstance(settings, dict)
        else None
    )
    values = cast(list[object], value) if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int) and not isinstance(item, bool)]


def _mend_decoder(backend: Any) -> bool:
    """Replace a missing or wrong decoder of a byte-level tokenizer; return whether that was needed:
    without it, encoded text would not decode to itself."""
    tokens: list[int] = backend.encode(_TRIED, add_special_tokens=False).ids
    if backend.decode(tokens).strip() == _TRIED:
        return False
    decoder: Any = backend.decoder
    backend.decoder = decoders.ByteLevel()
    if backend.decode(tokens).strip() == _TRIED:
        return True
    if decoder is not None:
        backend.decoder = decoder
    return False


def _vocabulary(config: Mapping[str, Any]) -> int | None:
    for place in (config, config.get("text_config")):
        if isinstance(place, Mapping) and isinstance(place.get("vocab_size"), int):
            return cast(int, place["vocab_size"])
    return None


def _check_templates(characters: int, path: Path) -> None:
    """Raise TokenizerError if templates of this many `characters` are too large to compile."""
    if characters > TEMPLATE_CHARACTERS:
        raise TokenizerError(
            f"{path}: its chat templates together have more than {TEMPLATE_CHARACTERS:,} characters"
        )
