"""Counts the thinking tokens of a choice, and sets a template's variables for thinking. Pure.

Thinking is counted as in the usage figures: tokens inside thinking, and tokens that end inside it,
with the tokens of the marks. `is_due` is exact after `take` was called with every token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from bus.wire.ids import TokenId
from bus.wire.messages.requests import GenerationRequest
from runner.text.detokenise import Detokeniser
from runner.text.families.family import Family, Reader
from runner.text.prepared import SpanState, ThinkingLimit
from runner.text.stops import automaton

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""All levels of thinking effort, the least first."""
LEVELS = ("low", "medium", "high")
"""The effort levels of a template that has a variable for them but names at most one level, such as
gpt-oss's."""
_QUOTED = re.compile(r"""["'](none|minimal|low|medium|high|xhigh|max)["']""")


class Tokens(Protocol):
    """The part of `runner.text.tokenizer.ModelTokenizer` that a thinking limit needs."""

    family: Family
    vocabulary: int
    eos_token_ids: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ...

    def detokeniser(self, *, begins: bool) -> Detokeniser:
        """Return a new streaming detokeniser."""
        ...


class ThinkingMeter:
    """Counts the thinking tokens of one choice: implements `runner.text.prepared.ThinkingCount`."""

    def __init__(self, detokeniser: Detokeniser, reader: Reader, budget: int) -> None:
        """Count from the choice's first token on; `reader` has no stop strings."""
        self._detokeniser = detokeniser
        self._reader = reader
        self._budget = budget
        self.tokens = 0

    @property
    def is_thinking(self) -> bool:
        """Return whether the choice is thinking now."""
        return self._reader.reasoning

    @property
    def is_due(self) -> bool:
        """Return whether the choice is thinking and has used its budget."""
        return self._reader.reasoning and self.tokens >= self._budget

    def may_be_due(self, unread: int) -> bool:
        """Return whether the thinking budget may be used up after `unread` more tokens, which were
        not counted yet."""
        reader = self._reader
        if not (reader.reasoning or reader.may_think):
            return False
        return self.tokens + unread >= self._budget

    def take(self, token: TokenId) -> None:
        """Count the next token of the choice."""
        reader = self._reader
        reasoned = reader.reasoning
        text = self._detokeniser.add(token)
        if text:
            reader.feed(text)
        if reasoned or reader.reasoning:
            self.tokens += 1


def effort_levels(template: str) -> tuple[str, ...]:
    """Return the levels of `reasoning_effort` that a template accepts, the least first; none if it
    has no such variable."""
    if "reasoning_effort" not in template:
        return ()
    named = set(_QUOTED.findall(template))
    return tuple(level for level in EFFORTS if level in named) if len(named) > 1 else LEVELS


def level_for(effort: str | None, levels: tuple[str, ...], *, thinking: bool) -> str | None:
    """Return the template's level that is nearest to `effort`; of two equally near, the lesser.

    Without thinking, return the least level. None keeps the template's default.
    """
    if not thinking:
        return levels[0] if levels else None
    wanted_levels = [level for level in levels if level != "none"]
    if effort is None or not wanted_levels:
        return None
    wanted = EFFORTS.index(effort)
    return min(wanted_levels, key=lambda level: abs(EFFORTS.index(level) - wanted))


def template_variables(
    request: GenerationRequest, levels: tuple[str, ...], *, thinking: bool
) -> dict[str, Any]:
    """Return a template's variables other than `enable_thinking`.

    These are the request's own variables, and the amount of thinking under the names that templates
    use. `thinking`, for DeepSeek V3.1 and Granite, is off by default; it is set only if the request
    mentions thinking or effort.
    """
    variables: dict[str, Any] = dict(request.variables or {})
    if request.thinking is not None or request.effort is not None:
        variables["thinking"] = thinking
    level = level_for(request.effort, levels, thinking=thinking)
    if level is not None:
        variables["reasoning_effort"] = level
    if thinking and request.thinking_budget is not None:
        variables["thinking_budget"] = request.thinking_budget
    return variables


def thinking_limit(
    tokenizer: Tokens,
    budget: int | None,
    *,
    tools: Sequence[Mapping[str, Any]],
    opening: SpanState,
) -> ThinkingLimit | None:
    """Return the limit that ends thinking after `budget` tokens.

    Return None if there is no budget, or if the family has no text that ends thinking. Also return
    None if the tokens of that text would not end thinking, or would end the whole output.
    """
    if budget is None:
        return None
    family = tokenizer.family
    closing = family.closing(has_tools=bool(tools))
    ending = tuple(map(TokenId, tokenizer.encode(closing))) if closing else ()
    if not ending or max(ending) >= tokenizer.vocabulary:
        return None

    def count(opening: SpanState = opening) -> ThinkingMeter:
        """Return a new counter for one choice."""
        reader = family.reader(
            tools,
            reads_thinking=True,
            reads_tools=bool(tools),
            opening=opening,
            stops=automaton(()),
        )
        return ThinkingMeter(tokenizer.detokeniser(begins=True), reader, budget)

    tried = count("reasoning")
    for token in ending:
        tried.take(token)
    if tried.is_thinking or not tokenizer.eos_token_ids.isdisjoint(ending):
        return None
    return ThinkingLimit(ending, count)
