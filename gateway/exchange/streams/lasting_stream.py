"""Talks to the disk, through the journal: the additional state of a request whose client may read
the stream again after it disconnected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bus.wire.messages.tokens import Accepted, Entry, PrefillProgress, StepEntries, ToGateway
from gateway.exchange.streams.stream_journal import StreamFolder, StreamJournal
from gateway.exchange.streams.stream_records import EarlierAnswer, StreamHead
from gateway.requests.dispatcher import Exchange


@dataclass(slots=True)
class LastingStream:
    """The stream of one request, which its client may read again until `wait_s` seconds after it
    left.

    `owner`: who may read it. `body`: the bytes of the request, until they are in the journal.
    `earlier`: the answer so far, if an earlier process died. `journal`: the file from which another
    process can continue the stream; None if there is none.
    """

    owner: str
    wait_s: float
    body: bytes = field(default=b"", repr=False)
    earlier: EarlierAnswer | None = None
    journal: StreamJournal | None = None
    _is_closed: bool = False
    _is_accepted: bool = False
    _has_begun: bool = False
    _old: int = 0
    """How many of the next entries the journal already has."""

    @classmethod
    def taken_over(
        cls, owner: str, wait_s: float, earlier: EarlierAnswer, journal: StreamJournal
    ) -> LastingStream:
        """Return a stream that an earlier process began and this one continues."""
        return cls(
            owner,
            wait_s,
            earlier=earlier,
            journal=journal,
            _is_accepted=earlier.prompt_tokens > 0,
            _has_begun=earlier.begun is not None,
            _old=len(earlier.entries),
        )

    async def begin(self, files: StreamFolder, head: StreamHead) -> None:
        """Create the journal, with the request as its first record."""
        self.body = b""
        journal = await files.begin(head)
        if journal is not None and self._is_closed:
            journal.remove()
        else:
            self.journal = journal

    def remove(self) -> None:
        """Delete the journal: the stream has ended for good."""
        self._is_closed = True
        if self.journal is not None:
            self.journal.remove()

    def leave(self) -> None:
        """Release the journal, so that another process can continue the stream: this process is
        ending."""
        if self.journal is not None:
            self.journal.leave()
        self.journal = None

    async def take(self, exchange: Exchange) -> Sequence[Entry]:
        """Wait for the next entries of the answer, write them to the journal and return them."""
        entries = await exchange.inbox.take()
        if entries:
            await self.note(exchange, entries)
        return entries

    async def note(self, exchange: Exchange, entries: Sequence[Entry]) -> None:
        """Write the next entries of the answer to the journal, before they are sent to the
        client."""
        journal, (request,) = self.journal, exchange.requests
        old, self._old = self._old, max(0, self._old - len(entries))
        if journal is None or not (entries := entries[old:]):
            return
        messages: list[ToGateway] = []
        if not self._is_accepted:
            self._is_accepted = True
            messages.append(Accepted(request.request_id, 0, request.prompt_tokens))
        record = request.resuming.record
        if not self._has_begun and record is not None:
            self._has_begun = True
            messages.append(record.first_report(request.request_id))
        if new := tuple(entry for entry in entries if type(entry) is not PrefillProgress):
            messages.append(StepEntries(0, new))
        if messages and not await journal.add(messages):
            self.journal = None
