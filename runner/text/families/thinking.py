"""How long a choice has thought, and how much a template is told to have it think. Pure.

Thinking is counted as usage counts it: a token counts that was said within thinking, or that ended
within it, the marks' own tokens included. What `is_due` says is exact once every token was taken.
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
"""All words that there are for how much to think, the least first."""
LEVELS = ("low", "medium", "high")
"""What a template knows that takes a level and names none, or one alone: gpt-oss's."""
_QUOTED = re.compile(r"""["'](none|minimal|low|medium|high|xhigh|max)["']""")


class Tokens(Protocol):
    """The part of `runner.text.tokenizer.ModelTokenizer` that a limit is made of."""

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
    """Counts one choice's thinking (`runner.text.prepared.ThinkingCount`)."""

    def __init__(self, detokeniser: Detokeniser, reader: Reader, budget: int) -> None:
        """Count from the choice's first token on; `reader` looks for no stop strings."""
        self._detokeniser = detokeniser
        self._reader = reader
        self._budget = budget
        self.tokens = 0

    @property
    def is_thinking(self) -> bool:
        """Return whether the choice thinks now."""
        return self._reader.reasoning

    @property
    def is_due(self) -> bool:
        """Return whether the choice thinks, and has done so for its budget."""
        return self._reader.reasoning and self.tokens >= self._budget

    def may_be_due(self, unread: int) -> bool:
        """Return whether it may be due once so many more tokens are taken."""
        reader = self._reader
        if not (reader.reasoning or reader.may_think):
            return False
        return self.tokens + unread >= self._budget

    def take(self, token: TokenId) -> None:
        """Take the next token of the choice."""
        reader = self._reader
        reasoned = reader.reasoning
        text = self._detokeniser.add(token)
        if text:
            reader.feed(text)
        if reasoned or reader.reasoning:
            self.tokens += 1


def effort_levels(template: str) -> tuple[str, ...]:
    """Return the levels of `reasoning_effort` that a template knows, the least first; none where it
    takes no such variable."""
    if "reasoning_effort" not in template:
        return ()
    named = set(_QUOTED.findall(template))
    return tuple(one for one in EFFORTS if one in named) if len(named) > 1 else LEVELS


def level_for(effort: str | None, levels: tuple[str, ...], *, thinking: bool) -> str | None:
    """Return the level to tell a template: the nearest that it knows, the lesser of two; the least
    where the model shall not think; None to leave it its own."""
    if not thinking:
        return levels[0] if levels else None
    asked = [one for one in levels if one != "none"]
    if effort is None or not asked:
        return None
    wanted = EFFORTS.index(effort)
    return min(asked, key=lambda one: abs(EFFORTS.index(one) - wanted))


def template_variables(
    request: GenerationRequest, levels: tuple[str, ...], *, thinking: bool
) -> dict[str, Any]:
    """Return what a template is told beside `enable_thinking`: what the request says itself, and
    how much to think, by the names that templates have for it. `thinking`, which DeepSeek V3.1 and
    Granite know, is off there unless it is told: it is where the request says so."""
    told: dict[str, Any] = dict(request.variables or {})
    if request.thinking is not None or request.effort is not None:
        told["thinking"] = thinking
    level = level_for(request.effort, levels, thinking=thinking)
    if level is not None:
        told["reasoning_effort"] = level
    if thinking and request.thinking_budget is not None:
        told["thinking_budget"] = request.thinking_budget
    return told


def thinking_limit(
    tokenizer: Tokens,
    budget: int | None,
    *,
    tools: Sequence[Mapping[str, Any]],
    opening: SpanState,
) -> ThinkingLimit | None:
    """Return how thinking is ended after `budget` tokens; None where there is no budget, or the
    family has no words for it, or none that end thinking and nothing else."""
    if budget is None:
        return None
    family = tokenizer.family
    closing = family.closing(has_tools=bool(tools))
    ending = tuple(map(TokenId, tokenizer.encode(closing))) if closing else ()
    if not ending or max(ending) >= tokenizer.vocabulary:
        return None

    def count(opening: SpanState = opening) -> ThinkingMeter:
        """Return a new count of one choice's thinking."""
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
