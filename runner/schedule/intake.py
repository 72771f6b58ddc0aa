"""Which requests are refused at the door, and how long those had better wait.

Pure: time arrives as `now`. A request is refused that never fits, and one that finds the queue
full, unless others have more than their share of it, or one that has not begun stands worse and
gives its place; what the running rows have left, at the measured cost of a step, says when to come
again. Standing gets better steadily while one waits, at this runner or before it came: what has
waited for `promote_after_s` in all gives its place to none, so none is displaced for ever.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from bus.wire.errors import Refusal
from bus.wire.ids import RequestId
from bus.wire.shares import Sharer, Shares, standing
from runner.schedule.costs import GroupSize
from runner.schedule.rows import Row
from runner.schedule.table import RowTable
from runner.text import PreparedRequest

USUAL_TOKENS = 256.0
"""How long an answer is, until some have ended."""
LEAST_RETRY_S, MOST_RETRY_S = 1.0, 120.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that has not begun: who asks, how urgently, since when it has waited for a place at
    any runner. `returns`: its gateway takes it back; `rows` is how many it has."""

    request_id: RequestId
    sharer: Sharer
    priority: int
    since_at: float
    returns: bool = False
    rows: int = 1


class Intake:
    """Judges requests by what the table holds; it changes nothing there but that a request which
    gives its place leaves."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._usual_tokens = USUAL_TOKENS

    def unfit(self, prepared: PreparedRequest, made: int = 0) -> Refusal | None:
        """Return why the request cannot be taken, however much room there is; None where it can.
        It has `made` so many tokens elsewhere."""
        if prepared.request_id in self._table.requests:
            return Refusal(
                reason="conflict", message=f"request {prepared.request_id} is open already"
            )
        return self._never_fits(prepared, made)

    def full(self, sharer: Sharer, preparing: Sequence[Sharer] = ()) -> Refusal | None:
        """Return why a request of `sharer` finds no place to wait in, behind requests of the
        sharers `preparing` that are on their way here; None where it does."""
        table = self._table
        over = len(table.rows) + len(preparing) - table.max_rows
        if over < 0:
            return None
        queue = table.queue()
        queued, most = len(queue) + min(len(preparing), over), table.settings.max_waiting
        if queued < most or self._has_share(sharer, queue, preparing):
            return None
        return Refusal(
            reason="queue_full",
            message=f"{queued} requests are waiting already",
            position=queued,
            retry_after_s=self._retry_after_s(),
        )

    def make_place(
        self, coming: Arrival, preparing: Sequence[Arrival], now: float
    ) -> RequestId | Refusal | None:
        """Return None where there is a place for a request, behind those that are on their way
        here (`preparing`); else which request gave its place to it, or why there is none. One that
        was here has left without an end; one on its way is the caller's to forget."""
        refusal = self.full(coming.sharer, [one.sharer for one in preparing])
        if refusal is None:
            return None
        displaced = self.gives_place(coming, preparing, now)
        if displaced is None:
            return refusal
        self._table.withdraw(displaced)
        return displaced

    def gives_place(
        self, coming: Arrival, preparing: Sequence[Arrival], now: float
    ) -> RequestId | None:
        """Return which request gives its place to `coming`, which finds all taken; None for none.

        Of those here or on their way here (`preparing`) that have not begun, the one that stands
        worst, the youngest of these, if it stands worse than `coming`. One is passed over whose
        sharer would have a right to the place back.
        """
        aged_s = self._table.settings.promote_after_s

        def _stands(one: Arrival) -> float:
            return standing(one.priority, now - one.since_at, aged_s)

        bar = _stands(coming)
        able = [one for one in (*self._unbegun(now), *preparing) if one.returns]
        worse = [one for one in able if _stands(one) > bar]
        if not worse:
            return None
        rows = (row.sharer for row in self._table.rows.values())
        shares = Shares(itertools.chain(rows, (one.sharer for one in preparing)))
        shares.take(coming.sharer)
        worse.reverse()  # of those that came at once the last goes first
        for one in sorted(worse, key=lambda one: (_stands(one), one.since_at), reverse=True):
            left = shares.copy()
            for _ in range(one.rows):
                left.give_back(one.sharer)
            if left.gives_way(one.sharer) is None:
                return one.request_id
        return None

    def _unbegun(self, now: float) -> list[Arrival]:
        """Return the requests here of which no row has begun."""
        return [
            Arrival(
                request_id,
                rows[0].sharer,
                rows[0].prepared.request.priority,
                now - max(row.waits_s(now) for row in rows),
                rows[0].returns,
                len(rows),
            )
            for request_id, rows in self._table.requests.items()
            if len(rows) == len(rows[0].prepared.choices)
            and all(row.admitted_at is None for row in rows)
        ]

    def ended(self, row: Row) -> None:
        """Note how long the answer of a row that has ended was, if it is whole."""
        if row.finish in ("stop", "length") and row.prepared.max_tokens:
            self._usual_tokens += 0.2 * (len(row.made) - self._usual_tokens)

    def _never_fits(self, prepared: PreparedRequest, made: int) -> Refusal | None:
        table = self._table
        length = len(prepared.tokens)
        limit = table.facts.context_tokens
        if length + prepared.max_tokens > limit:
            return Refusal(
                reason="context_length",
                message=f"{length} prompt tokens and {prepared.max_tokens} more exceed {limit}",
                facts={"prompt_tokens": length, "limit_tokens": limit},
            )
        reserved = min(made + table.settings.headroom_tokens, prepared.max_tokens)
        needed_bytes = table.cost_bytes([length + reserved])
        if needed_bytes > table.kv_bytes:
            return Refusal(
                reason="insufficient_memory",
                message=f"the prompt needs {needed_bytes} bytes of KV memory, "
                f"{table.kv_bytes} are allowed",
                facts={"needed_bytes": needed_bytes, "limit_bytes": table.kv_bytes},
            )
        return None

    def _has_share(
        self, sharer: Sharer, queue: Sequence[RequestId], preparing: Sequence[Sharer]
    ) -> bool:
        """Return whether a place is made in a full queue: another sharer has at least two rows more
        here, and requests of the same API key wait in at most twice the places there are."""
        table = self._table
        key = sharer[:1]
        waiting = itertools.chain((table.requests[one][0].sharer for one in queue), preparing)
        if sum(one[:1] == key for one in waiting) >= 2 * table.settings.max_waiting:
            return False
        rows = (row.sharer for row in table.rows.values())
        return Shares(itertools.chain(rows, preparing)).gives_way(sharer) is not None

    def _retry_after_s(self) -> float:
        """Return how long until the first of the running rows ends, and so a place frees up.

        A row may make all the tokens that it asked for, but ends as soon as the usual one does.
        """
        table = self._table
        running = [
            row for row in table.rows.values() if row.row_id is not None and row.paused_at is None
        ]
        step_s = table.costs.decode_s(max(len(running), 1))
        left_s = [self._left_s(row, step_s) for row in running]
        soonest_s = min(left_s, default=step_s * self._usual_tokens)
        return round(min(max(soonest_s, LEAST_RETRY_S), MOST_RETRY_S), 1)

    def _left_s(self, row: Row, step_s: float) -> float:
        unread = row.life_tokens - row.computed
        prefill_s = self._table.costs.prefill_s(GroupSize(unread)) if unread > 0 else 0.0
        return prefill_s + step_s * min(row.prepared.max_tokens - len(row.made), self._usual_tokens)
