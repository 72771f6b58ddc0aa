"""Talks to llguidance and the tokenizer's file: makes the grammar matchers of an engine's rows. A
matcher says which tokens the grammar allows next."""

from __future__ import annotations

import json
from pathlib import Path

from llguidance import LLTokenizer

from bus.wire.ids import TokenId
from runner.engine import GrammarSpec
from runner.text import BadGrammar, RowMatcher, RowMatchers


class GrammarMasks:
    """Makes grammar matchers for the rows of one model. The model needs a tokenizer.json and an end
    token."""

    def __init__(self, path: Path, *, vocabulary: int, eos_token_ids: frozenset[int]) -> None:
        self._matchers: RowMatchers | None = None
        file = path / "tokenizer.json"
        if file.is_file() and eos_token_ids:
            guide = LLTokenizer(
                _without_padding(file.read_text(encoding="utf-8")),
                n_vocab=vocabulary,
                eos_token=sorted(eos_token_ids),
            )
            self._matchers = RowMatchers(guide, vocabulary=vocabulary, ends=eos_token_ids)

    def start(self, spec: GrammarSpec, made: tuple[TokenId, ...]) -> RowMatcher:
        """Return a matcher that has already consumed the tokens `made`. Raises BadGrammar if the
        grammar cannot be used, and DeadEnd if it does not allow these tokens."""
        if self._matchers is None:
            raise BadGrammar("the model has no tokenizer.json or no end token; grammars need both")
        return self._matchers.start(spec, made)


def _without_padding(tokenizer_json: str) -> str:
    """Return the tokenizer's JSON without the settings that make it pad or truncate texts."""
    settings = json.loads(tokenizer_json)
    settings["padding"] = settings["truncation"] = None
    return json.dumps(settings, ensure_ascii=False)
