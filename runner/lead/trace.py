"""The trace of one request: a bounded number of spans.

Pure: each event has its timestamp. The spans of a choice follow each other without gaps, from the
end of tokenising to the report. If a choice has more steps than spans, neighbouring spans are
merged, so that a long answer costs no more than a short one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bus.wire.ids import NodeId, RequestId
from bus.wire.messages.control import GroupSpec
from bus.wire.messages.tokens import SpanName, Traced, TraceSpan
from runner.schedule import RowEvent, RowPrefilled, RowStarted, RowToken
from runner.serving import OpenRequest
from runner.text import PreparedRequest

if TYPE_CHECKING:
    from runner.lead.lead_loop import Stepped

MOST_CHOICES = 8
"""The most choices of a request that are traced."""
MOST_SPANS = 64
"""The most spans per name and choice."""


class SpanSeries:
    """Consecutive spans of one name; neighbours are merged so that there are at most
    `MOST_SPANS`."""

    def __init__(self) -> None:
        self.spans: list[TraceSpan] = []
        self._per = 1

    def add(self, span: TraceSpan) -> None:
        spans = self.spans
        if spans and spans[-1].steps + span.steps <= self._per:
            spans[-1] = _joined(spans[-1], span)
            return
        spans.append(span)
        if len(spans) > MOST_SPANS:
            self._per *= 2
            pairs = [spans[start : start + 2] for start in range(0, len(spans), 2)]
            self.spans = [_joined(*pair) if len(pair) == 2 else pair[0] for pair in pairs]


class ChoiceTrace:
    """The spans of one choice from `at_s` on. Instants are seconds since the request arrived."""

    def __init__(self, choice: int, at_s: float) -> None:
        self._choice = choice
        self._at_s = at_s
        self._queued: TraceSpan | None = None
        self._read = 0
        self._prefill, self._decode = SpanSeries(), SpanSeries()

    def started(self, cached_tokens: int, at_s: float) -> None:
        """Record that the choice's row was admitted, with this many prompt tokens from the prefix
        cache."""
        if self._queued is None:
            self._queued = self._until("queued", at_s)
            self._read = cached_tokens

    def prefilled(self, done: int, at_s: float, step_s: float) -> None:
        """Record that `done` prompt tokens are computed."""
        new, self._read = max(0, done - self._read), done
        self._prefill.add(self._until("prefill", at_s, new, step_s, steps=1))

    def made_token(self, at_s: float, step_s: float) -> None:
        """Record an output token. The first token comes from the step that ends the prompt."""
        if not self._decode.spans and at_s <= self._at_s:
            return
        self._decode.add(self._until("decode", at_s, 1, step_s, steps=1))

    def spans_until(self, at_s: float) -> list[TraceSpan]:
        """Return the choice's spans in order, up to `at_s`."""
        begun = [] if self._queued is None else [self._queued]
        last = self._until("queued" if self._queued is None else "end", at_s)
        return [*begun, *self._prefill.spans, *self._decode.spans, last]

    def _until(
        self, name: SpanName, at_s: float, tokens: int = 0, step_s: float = 0.0, *, steps: int = 0
    ) -> TraceSpan:
        began_s, self._at_s = self._at_s, max(at_s, self._at_s)
        longest_s = self._at_s - began_s if steps else 0.0
        return TraceSpan(name, self._choice, began_s, self._at_s, tokens, steps, longest_s, step_s)


class RequestTrace:
    """The trace of a request that arrived at `received_at` and was tokenised at `prepared_at`.
    `ranks` are the nodes of a group's ranks, which report their own spans."""

    def __init__(
        self,
        request_id: RequestId,
        choices: int,
        *,
        received_at: float,
        prepared_at: float,
        ranks: tuple[NodeId, ...] = (),
    ) -> None:
        self._ranks = ranks
        self._request_id = request_id
        self._received_at = received_at
        self._accepted_at = prepared_at
        text_s = prepared_at - received_at
        self._template = TraceSpan("template", 0, 0.0, text_s)
        self._choices = [ChoiceTrace(index, text_s) for index in range(min(choices, MOST_CHOICES))]

    def took(self, event: RowEvent, news: Stepped) -> None:
        """Record a row event of the step in `news`."""
        if event.key.choice >= len(self._choices):
            return
        choice = self._choices[event.key.choice]
        read_s = news.read_at - self._received_at
        match event:
            case RowToken():
                choice.made_token(read_s, news.step_s)
            case RowPrefilled(done=done):
                choice.prefilled(done, read_s, news.step_s)
            case RowStarted(cached_tokens=cached_tokens):
                choice.started(cached_tokens, news.planned_at - self._received_at)
            case _:
                return

    def report(self, now: float) -> Traced:
        now_s = now - self._received_at
        spans = [span for choice in self._choices for span in choice.spans_until(now_s)]
        return Traced(
            self._request_id,
            self._received_at,
            self._accepted_at,
            now,
            len(self._choices),
            (self._template, *spans),
            self._ranks,
        )


def trace_of(
    request: OpenRequest, prepared: PreparedRequest, now: float, group: GroupSpec | None = None
) -> RequestTrace:
    """Return a new trace for a request that asked for one and is accepted now."""
    return RequestTrace(
        prepared.request_id,
        len(prepared.choices),
        received_at=request.received_at,
        prepared_at=now,
        ranks=() if group is None else tuple(seat.node for seat in group.ranks),
    )


def _joined(span: TraceSpan, other: TraceSpan) -> TraceSpan:
    return TraceSpan(
        span.name,
        span.choice,
        span.began_s,
        other.ended_s,
        span.tokens + other.tokens,
        span.steps + other.steps,
        max(span.longest_s, other.longest_s),
        span.computed_s + other.computed_s,
    )
