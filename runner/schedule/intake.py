"""Decide which requests are refused on arrival, and when they should retry.

Pure: time arrives as `now`. A request that can never fit is refused. A request that finds the queue
full is refused too, unless other requesters exceed their share, or it displaces a waiting request
with a worse standing. The retry time is computed from the tokens that the running rows still have
to make, and the measured cost of a step. A request's standing is its priority, which improves while
it waits at this runner or another one. A request that waited `promote_after_s` in total is never
displaced.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from bus.models.kv import TokenChain
from bus.wire.errors import Refusal
from bus.wire.ids import RequestId
from bus.wire.messages.requests import PromptCost, Speculate
from bus.wire.shares import Sharer, Shares, standing
from runner.schedule.costs import GroupSize
from runner.schedule.drafting import RemoteQuestions
from runner.schedule.restoring import prompt_cost
from runner.schedule.rows import Row
from runner.schedule.table import RowTable
from runner.text import PreparedRequest

USUAL_TOKENS = 256.0
"""The assumed length of an answer in tokens, until some answers have ended."""
LEAST_RETRY_S, MOST_RETRY_S = 1.0, 120.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that has not begun: its requester, its priority, and since when it has waited at
    any runner. `returns`: its gateway would take the request back and submit it again. `rows` is
    its number of rows.
    """

    request_id: RequestId
    sharer: Sharer
    priority: int
    since_at: float
    returns: bool = False
    rows: int = 1


class Intake:
    """Accepts or refuses requests, depending on the rows in the table. It changes the table only
    when it displaces a request. `remote` says whether another runner can be asked for drafts."""

    def __init__(self, table: RowTable, remote: RemoteQuestions) -> None:
        self._table = table
        self._remote = remote
        self._usual_tokens = USUAL_TOKENS

    def unfit(self, prepared: PreparedRequest, made: int = 0) -> Refusal | None:
        """Return why this runner can never compute the request; None if it can. `made` tokens of
        its answer were already computed by another runner."""
        if prepared.request_id in self._table.requests:
            return Refusal(
                reason="conflict", message=f"request {prepared.request_id} already exists"
            )
        if prepared.request.speculate == "grammar" and prepared.grammar is None:
            message = "x_speculate = grammar needs a response format or a required tool call"
            return Refusal(reason="bad_request", message=message, field="x_speculate")
        return self._never_fits(prepared, made)

    def prompt_cost(self, prompt: TokenChain, how: str) -> PromptCost:
        """Return how long computing a prompt would take here (`restoring.prompt_cost`)."""
        return prompt_cost(self._table, prompt, how)

    @property
    def why_no_drafts(self) -> str:
        """Return why rows get no drafts if their request does not set `x_speculate`; empty if they
        do get drafts."""
        return self._table.draft_rules[self._table.settings.speculate].why_not

    def why_not(self, drafter: Speculate) -> str:
        """Return why this drafter guesses no tokens; empty if it does."""
        return self._table.draft_rules[drafter].why_not

    def undrafted(self, choice: Speculate) -> Refusal | None:
        """Return a refusal if a request names a drafter that this model lacks; None otherwise."""
        if choice in ("auto", "off"):
            return None
        why = self._table.draft_rules[choice].why_not
        if choice == "remote":
            why = why or self._remote.why_not
        if not why:
            return None
        message = f"x_speculate = {choice} is not possible: {why}; use auto or off"
        return Refusal(reason="unsupported", message=message, field="x_speculate")

    def full(self, sharer: Sharer, preparing: Sequence[Sharer] = ()) -> Refusal | None:
        """Return the refusal if the queue has no free place for a request of `sharer`; None if it
        has one. `preparing` has the requesters whose requests are still being tokenised; these
        requests take places, too."""
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
            message=f"{queued} requests are already waiting",
            position=queued,
            retry_after_s=self._retry_after_s(),
        )

    def make_place(
        self, coming: Arrival, preparing: Sequence[Arrival], now: float
    ) -> RequestId | Refusal | None:
        """Return None if there is a place for a request. `preparing` are requests whose text is
        still being tokenised; they count. Otherwise return the displaced request, or the refusal. A
        displaced request that is in the table is removed without an end event; the caller must drop
        a displaced request that is in `preparing`."""
        refusal = self.full(coming.sharer, [arrival.sharer for arrival in preparing])
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
        """Return the request to displace for `coming`; None if there is none.

        Candidates are requests that have not begun, in the table or still being tokenised
        (`preparing`). A request's standing is its priority, which improves while it waits
        (`bus.wire.shares.standing`). The candidate with the worst standing (of several, the
        youngest) is displaced if `coming` has a better standing. A candidate is skipped if its
        requester would be entitled to the place.
        """
        aged_s = self._table.settings.promote_after_s

        def _stands(arrival: Arrival) -> float:
            return standing(arrival.priority, now - arrival.since_at, aged_s)

        bar = _stands(coming)
        able = [arrival for arrival in (*self._unbegun(now), *preparing) if arrival.returns]
        worse = [arrival for arrival in able if _stands(arrival) > bar]
        if not worse:
            return None
        rows = (row.sharer for row in self._table.rows.values())
        shares = Shares(itertools.chain(rows, (arrival.sharer for arrival in preparing)))
        shares.take(coming.sharer)
        worse.reverse()  # of those that came at once the last goes first
        for arrival in sorted(
            worse, key=lambda arrival: (_stands(arrival), arrival.since_at), reverse=True
        ):
            left = shares.copy()
            for _ in range(arrival.rows):
                left.give_back(arrival.sharer)
            if left.gives_way(arrival.sharer) is None:
                return arrival.request_id
        return None

    def _unbegun(self, now: float) -> list[Arrival]:
        """Return the requests of which no row has begun."""
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
        """Record the length of an ended row's answer, if the answer is complete. `_retry_after_s`
        needs the usual length."""
        if row.finish in ("stop", "length") and row.prepared.max_tokens:
            self._usual_tokens += 0.2 * (len(row.made) - self._usual_tokens)

    def _never_fits(self, prepared: PreparedRequest, made: int) -> Refusal | None:
        table = self._table
        length = len(prepared.tokens)
        limit = table.facts.context_tokens
        if length + prepared.max_tokens > limit:
            return Refusal(
                reason="context_length",
                message=(
                    f"the prompt ({length} tokens) plus {prepared.max_tokens} tokens to "
                    f"generate exceed the context of {limit}"
                ),
                facts={"prompt_tokens": length, "limit_tokens": limit},
            )
        reserved = min(made + table.settings.headroom_tokens, prepared.max_tokens)
        needed_bytes = table.cost_bytes([length + reserved])
        if needed_bytes > table.kv_bytes:
            return Refusal(
                reason="insufficient_memory",
                message=(
                    f"the prompt needs {needed_bytes} bytes of KV memory; the limit is "
                    f"{table.kv_bytes}"
                ),
                facts={"needed_bytes": needed_bytes, "limit_bytes": table.kv_bytes},
            )
        return None

    def _has_share(
        self, sharer: Sharer, queue: Sequence[RequestId], preparing: Sequence[Sharer]
    ) -> bool:
        """Return whether a full queue still accepts a request of `sharer`. It does if another
        requester has at least two rows more in this runner. Requests of one API key may fill at
        most twice the places of the queue."""
        table = self._table
        key = sharer[:1]
        waiting = itertools.chain(
            (table.requests[request_id][0].sharer for request_id in queue), preparing
        )
        if sum(asker[:1] == key for asker in waiting) >= 2 * table.settings.max_waiting:
            return False
        rows = (row.sharer for row in table.rows.values())
        return Shares(itertools.chain(rows, preparing)).gives_way(sharer) is not None

    def _retry_after_s(self) -> float:
        """Return the seconds until the first running row should end.

        A row may use all tokens that it requested, but is assumed to end at the usual length.
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
