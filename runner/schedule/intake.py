"""Which requests are refused at the door, and how long those had better wait.

Pure: time arrives as `now`. A request is refused that never fits, and one that finds the queue
full; the pace at which rows end says when to come again.
"""

from __future__ import annotations

from bus.wire.errors import Refusal
from runner.schedule.rows import Row
from runner.schedule.table import RowTable
from runner.text import PreparedRequest


class Intake:
    """Judges requests by what the table holds; it changes nothing there."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._between_ends_s = 0.0
        self._ended_at: float | None = None

    def refusal(self, prepared: PreparedRequest, now: float) -> Refusal | None:
        """Return why the request cannot be taken now; None where it can."""
        if prepared.request_id in self._table.requests:
            return Refusal(
                reason="conflict", message=f"request {prepared.request_id} is open already"
            )
        return self._never_fits(prepared) or self._queue_full(now)

    def ended(self, row: Row, now: float) -> None:
        """Note that a row has ended: those that ran tell the pace."""
        if row.admitted_at is not None:
            if self._ended_at is not None:
                between_s = now - self._ended_at
                self._between_ends_s += 0.2 * (between_s - self._between_ends_s)
            self._ended_at = now

    def _never_fits(self, prepared: PreparedRequest) -> Refusal | None:
        table = self._table
        length = len(prepared.tokens)
        limit = table.facts.context_tokens
        if length + prepared.max_tokens > limit:
            return Refusal(
                reason="context_length",
                message=f"{length} prompt tokens and {prepared.max_tokens} more exceed {limit}",
                facts={"prompt_tokens": length, "limit_tokens": limit},
            )
        headroom = min(table.settings.headroom_tokens, prepared.max_tokens)
        needed_bytes = table.cost_bytes([length + headroom])
        if needed_bytes > table.kv_bytes:
            return Refusal(
                reason="insufficient_memory",
                message=f"the prompt needs {needed_bytes} bytes of KV memory, "
                f"{table.kv_bytes} are allowed",
                facts={"needed_bytes": needed_bytes, "limit_bytes": table.kv_bytes},
            )
        return None

    def _queue_full(self, now: float) -> Refusal | None:
        table = self._table
        if len(table.rows) < table.max_rows:
            return None
        queued = len(table.queue())
        if queued < table.settings.max_waiting:
            return None
        return Refusal(
            reason="queue_full",
            message=f"{queued} requests are waiting already",
            position=queued,
            retry_after_s=self._retry_after_s(queued, now),
        )

    def _retry_after_s(self, position: int, now: float) -> float:
        """Return how long until a place frees up: the pace of recent ends, else of decoding."""
        pace_s = self._between_ends_s or 256 * self._table.costs.decode_s(self._table.max_rows)
        if self._ended_at is not None:
            pace_s = max(pace_s, now - self._ended_at)
        return round(min(max(pace_s * (1 + position / 2), 1.0), 120.0), 1)
