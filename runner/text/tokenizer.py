# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false
# (tokenizers' and llguidance's functions are partly untyped)
"""Talks to the tokenizer files of one model directory, once, when it is opened.

`runner.text.opening` reads them. What it gives out is ours: encode, render a chat template, the
bytes of every token, the markers of thinking and of tool calls, the end-of-sequence ids, and
llguidance's view of the same vocabulary. No code from the model directory is ever run here; its
templates are, by `runner.text.rendering`, in a process of their own. After opening nothing else
here changes, so that any thread may ask.
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
"""A text of which byte-level tokens that are not decoded show another."""


class ModelTokenizer:
    """The tokenizer of one model. `vocabulary` is the width of the model's logits, `added_ids` are
    the ids of added tokens by their text."""

    def __init__(
        self,
        path: Path,
        *,
        vocabulary: int | None = None,
        parsers: Parsers = FOUND,
        special_tokens_in_messages: bool = False,
    ) -> None:
        """Open `path`. `vocabulary` None means what `config.json` says. `parsers` read its output.
        `special_tokens_in_messages`: those that messages spell are tokens, not text. Nothing is
        fetched from anywhere, and no code that lies there is run. Raises TokenizerError."""
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
            one for said in (generation, config, config.get("text_config")) for one in _ends(said)
        ]
        self._opened = open_tokenizer(path, _told(parsers), list(dict.fromkeys(ends)))
        self._backend: Any = self._opened.backend
        self.facts: dict[str, str] = {}
        """What was found out of the files, in words, by what it is about."""
        if _mend_decoder(self._backend):
            self.facts["decoder"] = "byte-level, though the files name none or another"
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
        found = self._opened.templates
        templates = [*found.values()] if isinstance(found, Mapping) else [found or ""]
        _check_templates(sum(map(len, templates)), path)
        self.family: Family = family_of(
            "\n".join(templates), self.added_ids, self._opened.marks, parsers
        )
        self.efforts = effort_levels("\n".join(templates))
        self.markup = Markup()
        """What is text where messages spell it."""
        if special_tokens_in_messages:
            self.facts["special tokens"] = "those that messages spell are tokens, by the card"
        else:
            self.markup = self._find_markup("\n".join(templates))
        self.table: TokenTable | None = self._token_table()
        self.longest_token: int = max(map(len, self._backend.get_vocab()), default=1) * 4
        """No token stands for more characters than this: its name's length, and some room for
        normalisers that shorten text."""

    def encode(
        self, text: str, *, special: bool = False, spelled: Sequence[Span] = ()
    ) -> list[int]:
        """Return the token ids of `text`; markup of added tokens in it becomes those tokens, but
        for that at `spelled` (`runner.text.markup.spans_in`), which is text. `special` adds what
        the tokenizer puts around a raw prompt (a beginning-of-sequence token)."""
        if not spelled:
            return self._opened.encode(text, special)
        with panics_told():
            return self._twin.encode(text, spelled, special=special)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, special tokens by their names; parts of characters are
        U+FFFD, and ids that stand for no token are left out."""
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
        """Return the chat template's text, told these `variables` of its own (a library's code
        knows none). Raises TemplateError and TemplateStopped of
        `runner.text.rendering`, and ValueError where there is no template for this."""
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
        told = {
            **(variables or {}),
            **self._opened.special_tokens,
            self._opened.thinking_variable: thinking,
            "messages": self.family.messages(marked(messages) if continue_final else messages),
            "tools": given,
            "documents": None,
            "add_generation_prompt": not continue_final,
        }
        template = template_for(self._opened.templates, tools=given is not None)
        text = self._renderer.render(template, told)
        return up_to_mark(text, messages[-1]) if continue_final else text

    def fill(self, template: str, told: Mapping[str, Any]) -> str:
        """Return what a template in Go's language makes of a conversation, or of what is to be
        filled in (`bus.wire.go_templates`). Raises TemplateError and TemplateStopped."""
        return self._renderer.render(template, told, language="go")

    @property
    def bos_token_id(self) -> int | None:
        """Return the token that marks the beginning of a text; None where there is none."""
        name = self._opened.special_tokens.get("bos_token")
        return None if name is None else self.token_id(name)

    def token_id(self, text: str) -> int | None:
        """Return the id of the added token that is exactly `text`, if there is one."""
        return self.added_ids.get(text)

    def token_text(self, token: int) -> str:
        """Return the text of one token alone, for log-probabilities; parts of characters are
        U+FFFD, and special tokens go by their names."""
        named = self._contents.get(token)
        if named is not None:
            return named
        if self.table is None:
            return self._opened.decode([token]) if token < self._tokens else ""
        known = self.table.bytes_of
        return known[token].decode("utf-8", "replace") if token < len(known) else ""

    def detokeniser(self, *, begins: bool) -> Detokeniser:
        """Return a new streaming detokeniser: for one choice, from its first token on. `begins`:
        what it says is a text of its own, not the rest of one."""
        if self.table is not None:
            return self.table.detokeniser(begins=begins)
        return WholeTextDetokeniser(self._opened.streaming(), self._hidden())

    @cached_property
    def guide(self) -> LLTokenizer:
        """Return llguidance's tokenizer: its masks are exactly `vocabulary` wide. Takes up to a
        second for large vocabularies; made once."""
        try:
            with panics_told():
                return LLTokenizer(
                    self._backend.to_str(),
                    n_vocab=self.vocabulary,
                    eos_token=sorted(self.eos_token_ids) or None,
                )
        except Exception as problem:
            raise TokenizerError(f"no grammars with this tokenizer: {problem}") from problem

    @cached_property
    def _twin(self) -> Twin:
        try:
            return Twin(self._backend, self.markup, secrets.token_hex(8))
        except Exception as problem:
            raise TokenizerError(f"markup cannot be told from its text: {problem}") from problem

    def _find_markup(self, written: str) -> Markup:
        marks = self.family.think, self.family.calls
        own = [text for one in marks if one for text in (one.start, one.end)]
        if any(text in self.added_ids for text in own):
            own += self.family.inner
        added = (
            AddedText(str(token.content), bool(token.special), bool(token.single_word))
            for token in self._added.values()
        )
        known = "\n".join([written, *(text for family in FILL_IN for text in family)])
        return find_markup(added, known, own)

    def _hidden(self) -> frozenset[int]:
        """Return special tokens whose text is never shown; markers that are read as text are
        kept."""
        inside = "\n".join(self.family.markers)
        return frozenset(
            index
            for index, token in self._added.items()
            if token.special and token.content not in inside
        )

    def _token_table(self) -> TokenTable | None:
        found: Any = self._backend.decoder
        decoder: Any = None if found is None else json.loads(found.__getstate__())
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


def _told(parsers: Parsers) -> dict[str, str]:
    """Return what mlx-lm is told of a parser of its own, in the place of what it would find."""
    return {"tool_parser_type": parsers.library} if parsers.library else {}


def _read_json(path: Path) -> dict[str, Any]:
    """Return the object in the file, or an empty one where there is none. Raises TokenizerError."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise TokenizerError(f"{path} is not JSON: {problem}") from problem
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def _ends(said: object) -> list[int]:
    """Return the end tokens that a configuration names."""
    value = cast(Mapping[str, object], said).get("eos_token_id") if isinstance(said, dict) else None
    found = cast(list[object], value) if isinstance(value, list) else [value]
    return [item for item in found if isinstance(item, int) and not isinstance(item, bool)]


def _mend_decoder(backend: Any) -> bool:
    """Give a byte-level tokenizer whose decoder is missing, or is another, its own; return whether
    that was needed: then a text that was encoded does not come back."""
    tokens: list[int] = backend.encode(_TRIED, add_special_tokens=False).ids
    if backend.decode(tokens).strip() == _TRIED:
        return False
    found: Any = backend.decoder
    backend.decoder = decoders.ByteLevel()
    if backend.decode(tokens).strip() == _TRIED:
        return True
    if found is not None:
        backend.decoder = found
    return False


def _vocabulary(config: Mapping[str, Any]) -> int | None:
    for place in (config, config.get("text_config")):
        if isinstance(place, Mapping) and isinstance(place.get("vocab_size"), int):
            return cast(int, place["vocab_size"])
    return None


def _check_templates(characters: int, path: Path) -> None:
    """Raise TokenizerError for templates that are too large to be compiled."""
    if characters > TEMPLATE_CHARACTERS:
        raise TokenizerError(
            f"{path}: its chat templates have over {TEMPLATE_CHARACTERS} characters together"
        )
