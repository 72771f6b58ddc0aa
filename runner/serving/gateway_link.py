"""Talks to gateway processes: receives and sends frames over this runner's data ROUTER.

A gateway process must say hello first. The runner drops it when it is silent or its socket is
closed. The listener acts on the frames.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import zip_longest
from typing import Protocol

from bus.links.transport import Link
from bus.patience import LostTime
from bus.service import Shell
from bus.wire.array_frames import astuple
from bus.wire.data_frames import pack_to_gateway, unpack_to_runner
from bus.wire.errors import BadMessage, PortTaken
from bus.wire.ids import RequestId
from bus.wire.messages.control import RunnerSpec
from bus.wire.messages.requests import BLOCK_PROTOCOL
from bus.wire.messages.tokens import (
    DATA_PROTOCOL_MAX,
    Accepted,
    Cancel,
    ChoiceEnd,
    Credit,
    Entry,
    Failed,
    Finished,
    Goodbye,
    Hello,
    Ping,
    Recall,
    StepEntries,
    Submit,
    Suspended,
    ToGateway,
    Traced,
    Welcome,
)
from bus.wire.messages.traces import RankTraced
from bus.wire.proposals import FromProposer, ToProposer
from runner.serving.clients import GIVEN_UP, SILENT_S, Clients

Asked = Submit | Credit | Cancel | Recall | Ping | ToProposer
"""The messages that a gateway process or a verifier may send after its hello."""


class GatewayListener(Protocol):
    """The methods of the server that the link calls, in the main thread. `peer` is a socket
    identity."""

    @property
    def owed(self) -> Collection[RequestId]:
        """Return the open requests; while there are any, the link is busy."""
        ...

    def act_on(self, peer: bytes, message: Asked, now: float) -> None:
        """Act on a message of a gateway process or a verifier."""
        ...

    def cancel_peer(self, peer: bytes) -> int:
        """Cancel all requests of a gateway process; return how many were open."""
        ...


DISPLACED_PROTOCOL = 8
"""First version of the data plane in which a gateway takes back requests that have not begun."""
UNHEEDED_PROTOCOL = 6
"""First version of the data plane that reports fields without effect."""
PRESSURE_PROTOCOL = 10
"""First version of the data plane in which a choice may end for lack of memory."""


RANKS_PROTOCOL = 11
"""First version of the data plane in which every rank of a group sends its part of the trace of a
request."""


def convert(message: ToGateway | FromProposer, protocol: int) -> ToGateway | FromProposer | None:
    """Return the message without fields that this version of the data plane lacks; None if the
    version lacks the message."""
    if protocol < BLOCK_PROTOCOL and type(message) is StepEntries and _has_drafts(message):
        entries = tuple(_with_drafts_of(protocol, entry) for entry in message.entries)
        message = StepEntries(message.step, entries)
    if type(message) is Suspended:
        message = Suspended(message.request_id, message.so_far.for_protocol(protocol))
    if protocol < RANKS_PROTOCOL and type(message) is RankTraced:
        return None
    if protocol < RANKS_PROTOCOL and type(message) is Traced:
        return Traced(*astuple(message)[:-1])
    if type(message) is Accepted and message.unheeded and protocol < UNHEEDED_PROTOCOL:
        return Accepted(message.request_id, message.position, message.prompt_tokens)
    if type(message) is StepEntries and protocol < PRESSURE_PROTOCOL:
        return StepEntries(message.step, tuple(map(_cut_by_length, message.entries)))
    return message


def _has_drafts(message: StepEntries) -> bool:
    ends = (entry for entry in message.entries if isinstance(entry, Finished | Failed))
    return any(entry.usage.drafts for entry in ends)


def _with_drafts_of(protocol: int, entry: Entry) -> Entry:
    """Return a terminal with the counts of drafts that this version of the data plane knows; return
    other entries unchanged."""
    if type(entry) is Finished:
        return Finished(
            entry.request_id, entry.seq, entry.usage.for_protocol(protocol), entry.prompt
        )
    if type(entry) is Failed:
        first = entry.request_id, entry.seq, entry.reason, entry.message
        return Failed(*first, entry.usage.for_protocol(protocol), entry.details)
    return entry


def _cut_by_length(entry: Entry) -> Entry:
    """Return an entry that ends a choice for lack of memory as an end at the token limit; return
    other entries unchanged."""
    if type(entry) is not ChoiceEnd or entry.finish_reason != "memory_pressure":
        return entry
    return ChoiceEnd(entry.request_id, entry.seq, entry.choice, "length", entry.stop)


class GatewayLink:
    """The socket on which gateway processes connect, and those processes. `addresses` are the
    socket's addresses, announced to gateways."""

    def __init__(self, spec: RunnerSpec, shell: Shell, listener: GatewayListener) -> None:
        self._spec = spec
        self._boot = shell.speaker.boot
        self._reactor = shell.reactor
        self._log = shell.log
        self._listener = listener
        self._clients = Clients()
        self._lost = LostTime()
        self._link = Link("router", security=shell.security)
        self._link.tally = shell.traffic.by_identity("data", split=":", part=1)  # gw:NODE:...
        self._link.is_busy = lambda: bool(listener.owed)
        self.addresses = self._bind(spec)
        self._reactor.watch(self._link, self._received)

    def send(self, peer: bytes, message: ToGateway | FromProposer) -> None:
        """Send one frame. A gateway process whose socket is closed is dropped."""
        client, converted = self._clients.by_peer.get(peer), message
        if client is not None and client.protocol < DATA_PROTOCOL_MAX:
            converted = convert(message, client.protocol)
        if converted is None:
            return
        if not self._link.send(peer, pack_to_gateway(converted)) and client is not None:
            self._give_up(peer, "its socket is closed")

    def takes_back(self, peer: bytes) -> bool:
        """Return whether a gateway process takes back requests that have not begun."""
        client = self._clients.by_peer.get(peer)
        return client is not None and client.protocol >= DISPLACED_PROTOCOL

    def watch(self, now: float) -> float:
        """Drop gateway processes that are silent; called a few times a second. Return the instant
        until which this process last stood still."""
        self._lost.pass_by(now)
        for peer in self._clients.silent(now, self._lost.woke_at):
            self._give_up(peer, f"it was silent for {SILENT_S:g} s")
        return self._lost.woke_at

    def close(self, message: str) -> None:
        """Tell every gateway process that the runner ends, and close the socket."""
        for peer in tuple(self._clients.by_peer):
            self.send(peer, Goodbye(message))
        self._reactor.unwatch(self._link)
        self._link.close()

    def _bind(self, spec: RunnerSpec) -> tuple[str, ...]:
        """Open the listening socket; return the addresses to announce to gateways. An address that
        is in use is skipped."""
        addresses: list[str] = []
        for address, announced in zip_longest(spec.addresses, spec.announced, fillvalue=()):
            try:
                bound = self._link.bind(str(address))
            except PortTaken as error:
                self._log.error("this runner is unreachable from other nodes", why=str(error))
                continue
            addresses += announced or (bound,)
        return tuple(addresses)

    def _received(self, frames: list[bytes]) -> None:
        peer, now = frames[0], self._reactor.now()
        try:
            message = unpack_to_runner(frames[-1])
        except BadMessage as error:
            self._log.warning("dropped a frame", error=str(error)[:200])
            return
        if isinstance(message, Hello):
            self._greet(peer, message, now)
        elif self._clients.note_alive(peer, now):
            self._listener.act_on(peer, message, now)
        else:
            self.send(peer, Goodbye(GIVEN_UP))

    def _greet(self, peer: bytes, hello: Hello, now: float) -> None:
        client = self._clients.greet(peer, hello, now)
        if isinstance(client, str):
            self.send(peer, Goodbye(client))
            return
        spec = self._spec
        self.send(peer, Welcome(spec.instance, spec.generation, self._boot, client.protocol))

    def _give_up(self, peer: bytes, why: str) -> None:
        client = self._clients.forget(peer)
        open_requests = self._listener.cancel_peer(peer)
        if client is not None:
            self._log.warning("a gateway is gone", gateway=client.name, why=why, open=open_requests)
