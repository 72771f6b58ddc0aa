"""Follows the output of one row in its grammar: which tokens may come next.

Talks to llguidance only. A token that the grammar refuses, or a state without a next token, is a
`DeadEnd`: an error of the row. When the grammar is satisfied only an end token is allowed; after
that, anything is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from bus.wire.ids import TokenId
from runner.engine import GrammarSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KEPT_GRAMMARS = 64
NOTHING_FOLLOWS = "the format allows no further token, or its limits are exceeded"


class DeadEnd(Exception):
    """The grammar allows no continuation of the row's output."""


class BadGrammar(Exception):
    """The grammar does not compile, or the model has no tokenizer to compile it for."""


class RowMatcher:
    """The state of one row in its grammar."""

    def __init__(self, matcher: LLMatcher, vocabulary: int, ends: frozenset[int]) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._ends = ends
        self.over = False

    def accepts(self, token: TokenId) -> bool:
        """Return whether `token` may come next, without advancing."""
        if self.over:
            return True
        return token < self._vocabulary and self._matcher.validate_tokens([token]) == 1

    def consume(self, token: TokenId) -> None:
        """Advance the grammar by `token`. Raises DeadEnd if the grammar refuses the token; after
        the grammar's end any token is accepted."""
        if self.over:
            return
        if not self._matcher.consume_token(token):
            raise DeadEnd("the answer so far does not follow the format")
        self.over = token in self._ends

    def permitted(self, tokens: Sequence[TokenId]) -> int:
        """Return how many of `tokens` may come next, in this order. An end token counts as not
        permitted. Does not advance."""
        if self.over:
            return 0
        real: list[int] = []
        for token in tokens:
            if token >= self._vocabulary or token in self._ends:
                break
            real.append(token)
        return self._matcher.validate_tokens(real) if real else 0

    def implied(self) -> tuple[TokenId, ...]:
        """Return the tokens of the text that must come next, as the tokenizer would write it; empty
        if several texts may come. Other spellings of it may be permitted, too."""
        if self.over or self._matcher.is_error():
            return ()
        tokens = [TokenId(token) for token in self._matcher.compute_ff_tokens()]
        return tuple(tokens[: self.permitted(tokens)])

    def allowed_along(self, tokens: Sequence[TokenId]) -> list[NDArray[np.bool_]]:
        """Return the flags of `allowed` before each of `tokens` and after the last one, without
        advancing. They end early where the grammar has no continuation. Raises DeadEnd if it has
        none now."""
        ahead = RowMatcher(self._matcher.deep_copy(), self._vocabulary, self._ends)
        ahead.over = self.over
        masks = [ahead.allowed()]
        try:
            for token in tokens:
                ahead.consume(token)
                masks.append(ahead.allowed())
        except DeadEnd:
            pass
        return masks

    def allowed(self) -> NDArray[np.bool_]:
        """Return one flag per token of the vocabulary, true if the token may come next; at least
        one is true. Raises DeadEnd."""
        import numpy as np  # compiling grammars needs none

        if self.over:
            return np.ones(self._vocabulary, dtype=np.bool_)
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise DeadEnd(NOTHING_FOLLOWS)
        mask = np.unpackbits(bits, bitorder="little")[: self._vocabulary].astype(np.bool_)
        if mask.size < self._vocabulary:
            mask = np.pad(mask, (0, self._vocabulary - mask.size))
        if not mask.any():
            raise DeadEnd(NOTHING_FOLLOWS)
        return mask


class RowMatchers:
    """Starts the matchers of rows, for one vocabulary. A grammar that several rows use is compiled
    once."""

    def __init__(self, guide: LLTokenizer, *, vocabulary: int, ends: frozenset[int]) -> None:
        self._guide = guide
        self._vocabulary = vocabulary
        self._ends = ends
        self._compiled = lru_cache(KEPT_GRAMMARS)(self._compile)

    def start(self, spec: GrammarSpec, made: Sequence[TokenId] = ()) -> RowMatcher:
        """Return a matcher that has already consumed the tokens `made`. Raises BadGrammar,
        DeadEnd."""
        fresh = self._compiled(spec).deep_copy()
        row = RowMatcher(fresh, self._vocabulary, self._ends)
        for token in made:
            row.consume(token)
        return row

    def _compile(self, spec: GrammarSpec) -> LLMatcher:
        matcher = open_matcher(self._guide, spec)
        if matcher.is_error():
            raise BadGrammar(matcher.get_error())
        return matcher


def open_matcher(guide: LLTokenizer, spec: GrammarSpec) -> LLMatcher:
    """Return a matcher at the beginning of the grammar. Never raises: check `is_error`."""
    return LLMatcher(guide, spec.compiled, log_level=0, limits=_limits())


def _limits() -> LLParserLimits:
    """Return limits under which a hostile pattern costs some 50 ms in total, and a large legitimate
    schema still compiles."""
    return LLParserLimits(
        initial_lexer_fuel=100_000,
        step_lexer_fuel=100_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )
