"""The rules of calls without a bus: a lossy network, permission, and every row of the table."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.calls import CALLS, Standing, TypedCall
from bus.calls.held_replies import HELD_REPLIES, HELD_S, HeldReplies
from bus.calls.pending import ANSWER_S, REPEAT_S, WHOLE_S, PendingCall
from bus.calls.permission import refusal_of
from bus.wire.api_keys import ApiKey
from bus.wire.codec import pack, pack_body, unpack, unpack_body
from bus.wire.errors import BadMessage
from bus.wire.ids import NodeId
from bus.wire.messages.gateways import (
    CALL_PIECE_BYTES,
    CALL_REPLY_BYTES,
    CALL_REQUEST_BYTES,
    CallAnswered,
    CallAsked,
)
from tests.harness.seeds import seed_for
from tests.recorded.specimens import full, least, specimens

ASKER = NodeId("n1")
ASKED = CallAsked(call_id="call-1", name="capture.take", request=b"")
MALFORMED = 2000
"""Malformed requests in all, spread over the calls."""
ALL = sorted(CALLS)


class Network:
    """One call between a node and the processes of another, over messages that get lost, repeated
    and reordered. Each process computes its reply in `compute_s`; replies differ by process."""

    def __init__(self, seed: int, *, size: int, processes: int, loss: float) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.loss = loss
        self.replies = [bytes([number]) * size for number in range(processes)]
        self.held = [HeldReplies(number, processes) for number in range(processes)]
        self.dead: set[int] = set()
        self.computed = defaultdict[int, int](int)
        self.in_flight: list[tuple[float, Any]] = []
        self.computing: list[tuple[float, int, Any]] = []

    def send(self, message: Any) -> None:
        """Put a message on the wire: lost, once or twice, each with a delay of its own."""
        for _ in range(self.chance.choice([1, 1, 1, 2])):
            if self.chance.random() >= self.loss:
                self.in_flight.append((self.now + self.chance.uniform(0.0, 0.3), message))

    def answer(self, asked: CallAsked) -> None:
        """Let the process whose turn it is answer a message."""
        for number, held_replies in enumerate(self.held):
            if number in self.dead or not held_replies.is_due(asked):
                continue
            held = held_replies.find(ASKER, asked.call_id, self.now)
            if held is None:
                held = held_replies.begin(ASKER, asked.call_id, f"edition-{number}", self.now)
                self.computed[number] += 1
                self.computing.append((self.now + 0.5, number, held))
            self.send(held.answer(asked))

    def play(self, pending: PendingCall, dies_at: float) -> None:
        """Run until the call ends or is late."""
        send_at = 0.0
        while not pending.has_ended and not pending.is_late(self.now):
            if self.now >= send_at:
                if self.now:
                    pending.repeat(self.now)
                self.send(pending.message)
                send_at = self.now + REPEAT_S
            if self.now >= dies_at:
                self.dead = {0}
            for at, number, held in [c for c in self.computing if c[0] <= self.now]:
                self.computing.remove((at, number, held))
                held.end(self.replies[number])
            for arrival in sorted(
                (m for m in self.in_flight if m[0] <= self.now), key=lambda m: m[0]
            ):
                self.in_flight.remove(arrival)
                message = arrival[1]
                if isinstance(message, CallAsked):
                    self.answer(message)
                elif not pending.has_ended and pending.take(message, self.now):
                    send_at = self.now if pending.has_ended else self._next(pending)
            self.now += 0.05

    def _next(self, pending: PendingCall) -> float:
        """Ask for the next piece at once."""
        self.send(pending.message)
        return self.now + REPEAT_S


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    size=st.sampled_from([0, 1, CALL_PIECE_BYTES, CALL_PIECE_BYTES + 1, 4 * CALL_PIECE_BYTES]),
    processes=st.integers(1, 3),
    loss=st.sampled_from([0.0, 0.1, 0.3]),
    dies_at=st.sampled_from([0.0, 0.9, 100.0]),
)
def test_a_reply_is_whole_and_of_one_process_or_the_call_is_late(
    seed: int, size: int, processes: int, loss: float, dies_at: float
) -> None:
    network = Network(seed, size=size, processes=processes, loss=loss)
    pending = PendingCall(ASKED, 0.0, WHOLE_S, is_slow=False)
    network.play(pending, dies_at)
    if pending.reply is None:
        assert pending.waited_s in (ANSWER_S, WHOLE_S)
        assert network.dead or loss, "without loss each call has its reply"
    else:
        assert pending.reply in network.replies
    assert all(count == 1 for count in network.computed.values()), "a reply is computed once"


def test_a_slow_call_waits_as_long_as_the_node_computes_and_any_call_ends_in_time() -> None:
    computing = CallAnswered(call_id="call-1")
    for is_slow, limit_s in ((True, 60.0), (False, ANSWER_S)):
        pending, now = PendingCall(ASKED, 0.0, 60.0, is_slow=is_slow), 0.0
        while not pending.is_late(now):
            now += REPEAT_S
            pending.take(computing, now)
            pending.repeat(now)
        assert pending.waited_s == limit_s
        assert pending.message.attempt == 0, "the process that computes is asked again"
        assert limit_s <= now < limit_s + 2 * REPEAT_S


def test_a_process_holds_so_many_replies_and_forgets_those_that_were_fetched() -> None:
    held = HeldReplies(0, 1)
    for number in range(HELD_REPLIES):
        held.begin(ASKER, f"call-{number}", "e", 0.0).end(b"x")
    full_up = held.begin(ASKER, "one too many", "e", 0.0)
    assert full_up.refused is not None and full_up.refused.code == "overloaded"
    assert held.find(ASKER, "one too many", 0.0) is None
    held.forget(HELD_S + 0.1)
    slow = held.begin(ASKER, "slow", "e", HELD_S)
    assert slow.refused is None
    held.forget(9 * HELD_S)
    assert held.find(ASKER, "slow", 9 * HELD_S) is slow, "it is still being computed"


def test_a_reply_that_is_too_large_is_refused() -> None:
    reply = HeldReplies(0, 1).begin(ASKER, "call-1", "e", 0.0)
    reply.end(bytes(CALL_REPLY_BYTES + 1))
    answer = reply.answer(ASKED)
    assert answer.refused is not None and "too large" in answer.refused.message


# --- the table -----------------------------------------------------------------------------------


def key_of(scope: Any, **more: Any) -> ApiKey:
    return full(ApiKey).model_copy(
        update={"id": "key-00000001", "scope": scope, "expires_at_s": None, **more}
    )


@pytest.mark.parametrize("name", ALL)
def test_a_node_without_the_right_is_refused_by_each_call(name: str) -> None:
    call, member = CALLS[name], Standing("one")
    needs_admin = call.right == "admin"

    def refused(asker: Standing | None, key: str, *keys: ApiKey) -> bool:
        refusal = refusal_of(call, asker, key, {key.id: key for key in keys}, 100.0)
        assert refusal is None or (refusal.status, refusal.code) == (403, "forbidden")
        return refusal is not None

    assert refused(None, ""), "the node is not part of the cluster"
    if call.right == "process":
        assert refused(member, ""), "only for processes of the same node"
        return
    assert not refused(member, ""), "its owner is behind the call"
    assert refused(member, "key-00000001") == needs_admin, "the key is unknown"
    assert refused(member, "key-00000001", key_of("inference")) == needs_admin
    assert refused(member, "key-00000001", key_of("admin", expires_at_s=99.0)) == needs_admin
    assert not refused(member, "key-00000001", key_of("admin"))


def test_calls_that_change_or_examine_a_node_need_an_admin() -> None:
    peers = {name for name, call in CALLS.items() if call.right == "peer"}
    assert {name.split(".")[0] for name in peers} == {"answer", "conversation", "job", "request"}


@pytest.mark.parametrize("name", ALL)
def test_each_message_of_a_call_is_closed_and_is_read_as_it_was_written(name: str) -> None:
    call = CALLS[name]
    for cls, limit_bytes in ((call.request, CALL_REQUEST_BYTES), (call.reply, CALL_REPLY_BYTES)):
        for message in specimens(cls):
            assert unpack_body(cls, pack_body(message), limit_bytes=limit_bytes) == message
        assert cls.model_config.get("extra") == "forbid" and cls.model_config.get("frozen")
        assert "kind" not in cls.model_fields, "the call's name says what it is"


def test_a_text_of_a_client_is_never_too_long_for_a_request() -> None:
    """Ids, names and owners come from clients: a long one names nothing, and is no fault."""
    long = "9" * 100_000
    for name, call in CALLS.items():
        request = least(call.request)
        values = {field: getattr(request, field) for field in call.request.model_fields}
        texts = {field: long for field, value in values.items() if type(value) is str}
        fields = {**request.model_dump(), **texts}
        packed = pack_body(call.request.model_validate(fields))
        read = unpack_body(call.request, packed, limit_bytes=CALL_REQUEST_BYTES)
        assert all(getattr(read, field) == long for field in texts), name


def mangled(call: TypedCall[Any, Any], chance: random.Random) -> bytes:
    """Return a request that no gateway writes."""
    body: Any = unpack(pack_body(full(call.request, chance.randrange(4))))
    packed = pack(body)
    way = chance.randrange(6)
    if way == 0:
        return packed[: chance.randrange(len(packed))] if body else b""
    if way == 1:
        return bytes(chance.randbytes(chance.randrange(1, 60)))
    if way == 2 or not body:
        return pack({**body, "unknown": chance.choice([None, 1, "x", [], {}])})
    field = chance.choice(sorted(body))
    if way == 3 and call.request.model_fields[field].is_required():
        return pack({name: value for name, value in body.items() if name != field})
    if way == 4:
        return pack(list(body.values()))
    return pack({**body, field: chance.choice([{"a": {}}, [[{}]], [[1, 2, 3, 4, 5]]])})


def test_malformed_requests_are_refused_with_a_clear_error() -> None:
    chance = random.Random(seed_for("MALFORMED_CALLS", 20261129))
    for count in range(MALFORMED):
        call = CALLS[ALL[count % len(ALL)]]
        data = mangled(call, chance)
        with pytest.raises(BadMessage) as refused:
            unpack_body(call.request, data, limit_bytes=CALL_REQUEST_BYTES)
        assert len(str(refused.value)) < 1000, (call.name, data)
