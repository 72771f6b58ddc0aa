"""The seam between the request server and a responder, and one open request (decision 0083).

Pure: time arrives as `now`. The server and the seam know only requests and pieces (parts of
answers). Only a responder knows tokens, rows, steps and batches. Promises to the gateway: entries
are numbered without gaps in the order they are sent. A piece is never sent without credit, and a
choice's end never before its pieces. Exactly one terminal comes last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from bus.wire.data_frames import pack_ids
from bus.wire.errors import TIMED_OUT, FailReason, FinishReason, Refusal
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import (
    Accepted,
    ChoiceEnd,
    Displaced,
    Entry,
    Failed,
    Finished,
    PrefillProgress,
    PromptAnswer,
    PromptTokens,
    Refused,
    Submit,
    Suspended,
    ToGateway,
    TokenDelta,
    ToolCallDelta,
    Vectors,
)
from bus.wire.shares import Sharer
from runner.text import Piece, PromptPiece, TextPiece

UNNAMED: Sharer = ("",)
"""The sharer of all requests whose gateway names no sharer."""
CancelReason = Literal["client", "deadline", "shutdown"]


@dataclass(frozen=True, slots=True)
class VectorsPiece:
    """The embedding vectors of the inputs from index `start` on, which are sent as `Vectors`. `cut`
    are the indices of inputs whose end was cut off."""

    start: int
    vectors: tuple[bytes, ...]
    cut: tuple[int, ...] = ()


class Responder(Protocol):
    """Answers the requests of one `RequestServer`.

    **Threads.** The server calls from the main thread only, and no call may block. A responder that
    computes in other threads posts its results with `Reactor.call`. It touches requests in the main
    thread only.

    **Order.** `refusal` comes first; if it returns None, `begin` follows at once. The responder
    then calls `OpenRequest.accept` or `refuse`, within some seconds, because a gateway waits at
    most 8 s. After `accept` it calls `put` for the pieces of each choice, `end_choice` for each
    choice, and `finish` or `fail`. Calls after the end do nothing. When the responder acts without
    a call of the server, it calls `RequestServer.flush` last. All new entries then leave in one
    message per gateway process. After its own calls the server flushes itself.

    **End.** The server calls `end` exactly once for each request that began, unless `give_back`
    returned the request. The cause may be the responder's own `finish`, `fail` or `refuse`. The
    server's causes are a cancellation, the deadline, a client that reads nothing, a gateway process
    that is gone, and the end of the runner. The terminal entry is sent after `end`.

    **Credit.** A piece costs one credit. `put` holds pieces without credit, so a responder may
    ignore `pause`. The rest of the answer then stays in memory.

    **Errors.** An exception of `refusal`, `begin` or `end` ends only its request. Elsewhere the
    responder catches its own errors and gives them to `RequestServer.failed`. An expected refusal
    is a value.
    """

    def step(self, now: float) -> int:
        """Return a number that grows while the work continues. A gateway whose requests have credit
        gives the runner up if the number stands still for 12 s."""
        ...

    def refusal(self, request: OpenRequest, now: float) -> Refusal | None:
        """Return why a request cannot be accepted; None if it can. The server has already checked
        the runner's phase, the model, the request's id and the size of waiting texts. This method
        must not compute anything yet."""
        ...

    def begin(self, request: OpenRequest, now: float) -> None:
        """Begin to answer a request."""
        ...

    def pause(self, request: OpenRequest, choice: int) -> None:
        """Stop the work on a choice whose client has no credit left."""
        ...

    def resume(self, request: OpenRequest, choice: int) -> None:
        """Continue the work on a paused choice."""
        ...

    def give_back(
        self, request: OpenRequest, now: float, *, begun: bool
    ) -> Displaced | Suspended | None:
        """Stop and forget a request so that another runner can answer it, and return the message
        that hands it back to its gateway; None if the work continues here. `begun`: a request of
        whose answer a part was already sent may be handed back too."""
        ...

    def end(self, request: OpenRequest, now: float) -> Usage:
        """Stop and forget a request that has ended, and return its usage (counts of tokens)."""
        ...


class RequestHost(Protocol):
    """The server, as an open request sees it."""

    responder: Responder

    def send(self, peer: bytes, message: ToGateway) -> None:
        """Send a message to a gateway process immediately, before the entries that wait to be
        sent."""
        ...

    def ended(self, request: OpenRequest, now: float) -> Usage:
        """Forget the request, stop its computation, and return its usage. Called once."""
        ...


@dataclass(slots=True)
class OpenChoice:
    """The pieces of one choice. `held` are pieces that wait for credit; `sent` counts sent pieces.
    The next `skipped` pieces are not sent, because the client has them from another runner.
    `finish` is set when all pieces are known, `closed` when the choice's end was sent.
    `stalled_at`: since when the choice has no credit."""

    credit: int
    held: deque[Piece | VectorsPiece] = field(default_factory=deque[Piece | VectorsPiece])
    sent: int = 0
    skipped: int = 0
    finish: FinishReason | None = None
    stop: str | None = None
    closed: bool = False
    paused: bool = False
    stalled_at: float | None = None


class OpenRequest:
    """One request of a gateway process.

    `peer` identifies the gateway process; `entries` is the outbox of that process, which its
    requests share. `returns`: the gateway accepts the request back as long as it has not begun.
    `size`: characters or token ids of the request's text; a responder that has read the text sets
    it to 0. `accepted` is None until the responder has accepted the request. `answer` is sent with
    the last entry, `Finished`.
    """

    def __init__(
        self,
        submit: Submit,
        *,
        peer: bytes,
        now: float,
        host: RequestHost,
        entries: list[Entry],
        size: int = 0,
        returns: bool = False,
    ) -> None:
        request = submit.request
        self.submit = submit
        self.request = request
        self.request_id = request.request_id
        self.peer = peer
        self.sharer: Sharer = submit.sharer or UNNAMED
        self.size = size
        self.returns = returns
        self.received_at = now
        self.since_at = now - submit.waited_ms / 1000
        self.deadline_at = now + submit.remaining_ms / 1000
        count = 1 if request.question is not None else request.n
        self.choices = [OpenChoice(submit.credit) for _ in range(count)]
        self.accepted: Accepted | None = None
        self.cancelled: CancelReason | None = None
        self.is_over = False
        self.answer: PromptAnswer | None = None
        self._host = host
        self._entries = entries
        self._is_made = self._packs_ids = False
        self._seq = 0

    # --- from the responder ----------------------------------------------------------------

    def accept(
        self,
        now: float,
        *,
        position: int = 0,
        prompt_tokens: int = 0,
        unheeded: tuple[str, ...] = (),
        resumes: bool = False,
    ) -> None:
        """Accept the request; called before any entry of its answer. `resumes`: another runner
        could resume it. If it was cancelled meanwhile, it ends now."""
        if self.is_over or self.accepted is not None:
            return
        self._packs_ids = resumes = resumes and self.submit.resumes
        self.accepted = Accepted(self.request_id, position, prompt_tokens, unheeded, resumes)
        self._host.send(self.peer, self.accepted)
        if self.cancelled is not None:
            self.cancel(self.cancelled, now)

    def answer_prompt(self, prompt_tokens: int, answer: PromptAnswer, now: float) -> None:
        """Accept a question about a prompt, and end it with the answer."""
        self.accept(now, prompt_tokens=prompt_tokens)
        self.answer = answer
        self.finish(now)

    def refuse(self, refusal: Refusal, now: float) -> None:
        """Refuse the request instead of accepting it."""
        if self.is_over or self.accepted is not None:
            return
        self._end(now)
        self._host.send(self.peer, Refused(self.request_id, refusal))

    def read_prompt(self, done: int, total: int) -> None:
        """Report to the client that `done` of `total` prompt tokens are read; such a report uses no
        credit."""
        if not self.is_over:
            self._entries.append(PrefillProgress(self.request_id, self._next(), done, total))

    def put(self, choice: int, pieces: Sequence[Piece | VectorsPiece], now: float) -> None:
        """Send pieces of a choice as far as the client's credit allows, and keep the others until
        more credit comes."""
        open_choice = self.choices[choice]
        held = open_choice.held
        if self.is_over:
            return
        if open_choice.finish is None:
            held.extend(pieces)
        while held and open_choice.skipped:
            held.popleft()
            open_choice.skipped -= 1
        while held and open_choice.credit > 0:
            open_choice.credit -= 1
            open_choice.sent += 1
            self._entries.append(self._entry(choice, held.popleft()))
        if open_choice.finish is not None and not held and not open_choice.closed:
            self._close(choice, open_choice.finish, open_choice.stop)
        stalls = open_choice.credit <= 0 and not open_choice.closed
        if stalls != (open_choice.stalled_at is not None):
            self._flow(choice, now if stalls else None)
        if self._is_made:
            self._finish_if_sent(now)

    def end_choice(
        self,
        choice: int,
        finish: FinishReason,
        now: float,
        *,
        stop: str | None = None,
        pieces: Sequence[Piece] = (),
    ) -> None:
        """End a choice after its last `pieces`. `stop` is the stop string that ended the choice, if
        one did."""
        open_choice = self.choices[choice]
        if open_choice.finish is None:
            open_choice.held.extend(pieces)
            open_choice.finish, open_choice.stop = finish, stop
            self.put(choice, (), now)

    def finish(self, now: float) -> None:
        """End the request as soon as all its pieces are sent. Choices that have not ended end with
        `stop`."""
        for choice in range(len(self.choices)):
            self.end_choice(choice, "stop", now)
        self._is_made = True
        self._finish_if_sent(now)

    def fail(
        self, reason: FailReason, message: str, now: float, details: dict[str, object] | None = None
    ) -> None:
        """Fail the request and drop its unsent pieces. If it was not accepted yet, refuse it as
        `not_ready`, so that its gateway tries another runner."""
        if self.accepted is None:
            self.refuse(Refusal(reason="not_ready", message=message), now)
        elif not self.is_over:
            usage = self._end(now)
            failed = Failed(self.request_id, self._next(), reason, message, usage, details or {})
            self._entries.append(failed)

    # --- from the server -----------------------------------------------------------------

    def cancel(self, why: CancelReason, now: float) -> None:
        """End the request early and drop its unsent pieces. A request that was not accepted yet
        ends when it is accepted."""
        self.cancelled = why
        if self.is_over or self.accepted is None:
            return
        if why == "deadline":
            self.fail("deadline", TIMED_OUT, now)
            return
        usage = self._end(now)
        for choice, open_choice in enumerate(self.choices):
            if not open_choice.closed:
                self._close(choice, "cancelled", None)
        self._entries.append(Finished(self.request_id, self._next(), usage, self.answer))

    def drop(self, now: float) -> None:
        """End the request without an answer, because its gateway process is gone."""
        if not self.is_over:
            self._end(now)

    def grant(self, choice: int, grant: int, now: float) -> None:
        """Add `grant` to the credit of a choice, and send pieces that waited for it. An unknown
        choice or an invalid grant is ignored."""
        if 0 <= choice < len(self.choices) and grant > 0:
            self.choices[choice].credit += grant
            self.put(choice, (), now)

    def stalled_s(self, now: float) -> float:
        """Return the seconds for which a choice has waited for its client's credit; of several
        choices, the longest wait."""
        since = [c.stalled_at for c in self.choices if c.stalled_at is not None]
        return now - min(since) if since else 0.0

    @property
    def is_paused(self) -> bool:
        """Return whether every incomplete choice waits for credit of its client."""
        return all(choice.credit <= 0 or choice.finish is not None for choice in self.choices)

    # --- inside --------------------------------------------------------------------------

    def _next(self) -> int:
        seq = self._seq
        self._seq += 1
        return seq

    def _end(self, now: float) -> Usage:
        self.is_over = True
        return self._host.ended(self, now)

    def _close(self, choice: int, finish: FinishReason, stop: str | None) -> None:
        self.choices[choice].closed = True
        self._entries.append(ChoiceEnd(self.request_id, self._next(), choice, finish, stop))

    def _finish_if_sent(self, now: float) -> None:
        if not self.is_over and all(choice.closed for choice in self.choices):
            usage = self._end(now)
            self._entries.append(Finished(self.request_id, self._next(), usage, self.answer))

    def _flow(self, choice: int, stalled_at: float | None) -> None:
        """Pause or resume the work on a choice whose credit ran out or came back."""
        open_choice = self.choices[choice]
        open_choice.stalled_at = stalled_at
        if stalled_at is not None and open_choice.finish is None:
            open_choice.paused = True
            self._host.responder.pause(self, choice)
        elif open_choice.paused:
            open_choice.paused = False
            self._host.responder.resume(self, choice)

    def _entry(self, choice: int, piece: Piece | VectorsPiece) -> Entry:
        seq, request_id = self._seq, self.request_id
        self._seq += 1
        if isinstance(piece, PromptPiece):
            return PromptTokens(request_id, seq, choice, piece.start, piece.text, piece.logprobs)
        if isinstance(piece, VectorsPiece):
            return Vectors(request_id, seq, choice, piece.start, piece.vectors, piece.cut)
        ids = pack_ids(piece.ids) if self._packs_ids else b""
        later = piece.later if self._packs_ids else ()
        if isinstance(piece, TextPiece):
            text = piece.channel, piece.text, piece.tokens, piece.logprobs
            return TokenDelta(request_id, seq, choice, *text, ids, later)
        call = piece.call, piece.call_id, piece.name, piece.arguments, piece.tokens
        return ToolCallDelta(request_id, seq, choice, *call, ids, later)
