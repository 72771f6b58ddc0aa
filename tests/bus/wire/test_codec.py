"""Bytes to messages and back, for every kind; garbage is refused with a clear error."""

from __future__ import annotations

import os
import string
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.process.installation import ROOT
from bus.wire import codec
from bus.wire.codec import (
    KINDS,
    MAX_CONTROL_BYTES,
    MAX_ITEMS,
    Envelope,
    decode,
    encode,
    pack,
    unpack,
)
from bus.wire.data_frames import (
    pack_ids,
    pack_to_gateway,
    pack_to_runner,
    unpack_to_gateway,
    unpack_to_runner,
)
from bus.wire.errors import BadMessage, Refusal
from bus.wire.ids import Boot, InstanceId, ModelId, NodeId, RequestId, owner_of, request_id
from bus.wire.messages.readings import DemandReading
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    ImagePart,
    Sampling,
    TextPart,
    TextPrompt,
    TokensPrompt,
    ToolCall,
    ToolSpec,
    Usage,
)
from bus.wire.messages.tokens import (
    Accepted,
    AnswerSoFar,
    Begun,
    Cancel,
    ChoiceEnd,
    ChoiceSoFar,
    Credit,
    Displaced,
    Failed,
    Finished,
    Goodbye,
    Hello,
    Ping,
    Pong,
    PrefillProgress,
    Recall,
    Refused,
    StepEntries,
    Submit,
    Suspended,
    ToGateway,
    TokenDelta,
    TokenLogprob,
    ToolCallDelta,
    ToRunner,
    Traced,
    TraceSpan,
    Welcome,
)
from bus.wire.topics import TABLE, rule_for
from tests.harness.seeds import PROVING

RID = RequestId("req-n1-0-b-1")
SO_FAR = AnswerSoFar(
    (1, 2, 3),
    400,
    (
        ChoiceSoFar(2**64 - 1, (7, 8), 1, ((-0.5, ((7, -0.5), (9, -1.0))), (-2.0, ()))),
        ChoiceSoFar(-(2**63), (), 0),
    ),
    Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1, decode_s=0.5),
)


def line() -> DemandReading:
    return DemandReading(node=NodeId("n"), process="p")


def test_an_envelope_comes_back_as_it_went() -> None:
    envelope = Envelope(NodeId("n"), "worker", Boot("b"), 7, line())
    assert decode(encode(envelope)) == envelope


def test_every_topic_carries_a_kind_that_travels() -> None:
    for row in TABLE:
        kind = row.message.model_fields["kind"].default
        assert KINDS[kind] is row.message
        assert rule_for(row.prefix + ".x.y") is row


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"surprise": 1}, "surprise"),
        ({"process": 5}, "process"),
        ({"node": None}, "node"),
    ],
)
def test_a_wrong_or_unknown_field_is_named(change: dict[str, Any], says: str) -> None:
    body = line().model_dump() | change
    body.pop("kind")
    data = pack([1, "demand_reading", "n", "p", "b", 1, body])
    with pytest.raises(BadMessage, match=says):
        decode(data)


def test_an_unknown_kind_and_another_protocol_are_named() -> None:
    with pytest.raises(BadMessage, match="no_such"):
        decode(pack([1, "no_such", "n", "p", "b", 1, {}]))
    with pytest.raises(BadMessage, match="protocol 99"):
        decode(pack([99, "demand_reading", "n", "p", "b", 1, {}]))


HELLO = {
    "node": "n-a",
    "name": "a",
    "namespace": "shoal",
    "boot": "b",
    "protocol_min": 1,
    "protocol_max": 1,
    "addresses": ["127.0.0.1:24154"],
    "ports": {"control": 24151, "telemetry": 24152, "candidate": 24153},
}
FIRST_WORDS: list[tuple[str, dict[str, Any]]] = [
    ("peer_hello", HELLO),
    ("peer_refused", {"node": "n-a", "reason": "protocol", "message": "upgrade"}),
    ("peer_goodbye", {"node": "n-a", "boot": "b"}),
]
"""As the first builds say and read them: no field may be added, renamed or left out."""


@pytest.mark.parametrize("version", [1, 2, 9])
@pytest.mark.parametrize(("kind", "body"), FIRST_WORDS, ids=[kind for kind, _ in FIRST_WORDS])
def test_first_words_are_the_same_bytes_in_every_version(
    monkeypatch: pytest.MonkeyPatch, version: int, kind: str, body: dict[str, Any]
) -> None:
    monkeypatch.setattr(codec, "PROTOCOL_MIN", version)
    monkeypatch.setattr(codec, "PROTOCOL_MAX", version)
    sent = [1, kind, "n-a", "bus", "b", 3, body]
    read = decode(pack(sent))
    assert KINDS[kind] is type(read.message)
    head, said = unpack(encode(read))[:6], unpack(encode(read))[6]
    assert (head, said) == (sent[:6], body)
    assert decode(pack([*sent[:6], {**body, "later": {"x": 1}}])) == read
    with pytest.raises(BadMessage, match="protocol 2 is not supported"):
        decode(pack([2, *sent[1:]]))


def test_all_else_is_of_the_version_that_the_build_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "PROTOCOL_MIN", 99)
    monkeypatch.setattr(codec, "PROTOCOL_MAX", 99)
    newer = encode(Envelope(NodeId("n"), "worker", Boot("b"), 7, line()))
    assert unpack(newer)[0] == 99
    monkeypatch.undo()
    with pytest.raises(BadMessage, match="protocol 99 is not supported"):
        decode(newer)


def test_oversized_messages_are_refused_before_they_are_read() -> None:
    with pytest.raises(BadMessage, match="the limit is"):
        unpack(b"\xc0" * (MAX_CONTROL_BYTES + 1))


@pytest.mark.parametrize(
    "body",
    [
        pack([None] * (MAX_ITEMS + 1)),
        pack(dict.fromkeys(range(MAX_ITEMS + 1))),
        b"\xd4\x01x",  # an extension type
    ],
    ids=("array", "map", "extension"),
)
def test_what_would_take_far_more_memory_than_bytes_is_refused(body: bytes) -> None:
    whole = pack([1, "demand_reading", "n", "p", "b", 1, {"models": None}])
    with pytest.raises(BadMessage, match="exceeds max_"):
        decode(whole[:-1] + body)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_garbage_raises_bad_message_and_nothing_else(data: bytes) -> None:
    for open_up in (decode, unpack_to_runner, unpack_to_gateway):
        with pytest.raises(BadMessage):
            open_up(data)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(string.ascii_letters, max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
TAGS = ["hello", "submit", "credit", "cancel", "ping", "step", "welcome", "refused", "pong"]


@settings(max_examples=400 if PROVING else 150)
@given(st.sampled_from(TAGS), st.lists(PLAIN, max_size=6))
def test_wellformed_nonsense_never_raises_anything_but_bad_message(
    tag: str, fields: list[Any]
) -> None:
    for open_up in (unpack_to_runner, unpack_to_gateway):
        try:
            open_up(pack([tag, *fields]))
        except BadMessage:
            continue


def full_request() -> GenerationRequest:
    messages = (
        ChatMessage(role="system", parts=(TextPart(text="be brief"),)),
        ChatMessage(role="user", parts=(TextPart(text="hi"), ImagePart(url="data:,x"))),
        ChatMessage(
            role="assistant",
            reasoning="hm",
            tool_calls=(ToolCall(call_id="c", name="f", arguments="{}"),),
        ),
        ChatMessage(role="tool", parts=(TextPart(text="1"),), tool_call_id="c"),
    )
    prompt = ChatPrompt(messages=messages, tools=(ToolSpec(name="f", parameters={"a": 1}),))
    return GenerationRequest(
        request_id=RID,
        model=ModelId("m"),
        prompt=prompt,
        n=2,
        stop=("x",),
        sampling=Sampling(temperature=0, seed=-5, logit_bias={3: -100.0}),
        top_logprobs=3,
    )


@pytest.mark.parametrize(
    "message",
    [
        Hello("gw", Boot("b"), 1, 1),
        Submit(full_request(), 3, 64, 120_000),
        Submit(full_request(), 3, 64, 120_000, ("", "me", "10.0.0.7", "10.0.0.7:4711")),
        Submit(full_request(), 3, 64, 120_000, ("", "me"), 1500),
        Submit(full_request(), 3, 64, 120_000, (), 1500),
        Submit(
            GenerationRequest(request_id=RID, model=ModelId("m"), prompt=TextPrompt(text="a")),
            1, 64, 1,
        ),
        Submit(
            GenerationRequest(
                request_id=RID, model=ModelId("m"), prompt=TokensPrompt(token_ids=(1, 2))
            ),
            1, 64, 1,
        ),
        Credit(RID, 0, 32),
        Cancel(RID, "deadline"),
        Recall(RID, begun=True),
        Submit(full_request(), 3, 64, 120_000, ("", "me"), 1500, SO_FAR),
        Submit(full_request(), 3, 64, 120_000, (), 0, SO_FAR),
        Submit(full_request(), 3, 64, 120_000, resumes=True),
        Submit(full_request(), 3, 64, 120_000, (), 9, SO_FAR, True, 2, True),
        Ping(Boot("b")),
    ],
)  # fmt: skip
def test_frames_for_a_runner_come_back_as_they_went(message: ToRunner) -> None:
    assert unpack_to_runner(pack_to_runner(message)) == message


def test_a_submit_that_does_not_say_who_asks_is_one_of_version_1() -> None:
    frame = pack_to_runner(Submit(full_request(), 3, 64, 120_000))
    assert len(unpack(frame)) == len(("submit", "request", 3, 64, 120_000))


def test_a_request_has_no_field_that_the_first_version_lacked_unless_it_is_set() -> None:
    request = GenerationRequest(
        request_id=RID, model=ModelId("m"), prompt=TokensPrompt(token_ids=(1, 2))
    )
    (_, sent, *_) = unpack(pack_to_runner(Submit(request, 3, 64, 120_000)))
    assert set(sent) == {
        "ignore_eos", "model", "n", "output", "parallel_tool_calls",
        "priority", "prompt", "request_id", "sampling", "stop", "tool_choice",
    }  # fmt: skip


def test_a_submit_of_one_that_no_runner_has_begun_is_as_before_version_10() -> None:
    frame = pack_to_runner(Submit(full_request(), 3, 64, 120_000, (), 1500))
    assert len(unpack(frame)) == len(("submit", "request", 3, 64, 120_000, (), 1500))


def test_a_submit_of_one_that_was_not_displaced_is_as_before_version_8() -> None:
    frame = pack_to_runner(Submit(full_request(), 3, 64, 120_000, ("", "me")))
    assert len(unpack(frame)) == len(("submit", "request", 3, 64, 120_000, ("", "me")))


@pytest.mark.parametrize(
    "message",
    [
        Welcome(InstanceId("i"), 2, Boot("b"), 1),
        Goodbye("no"),
        Accepted(RID, 3, 17),
        Refused(RID, Refusal(reason="queue_full", message="full", position=9, retry_after_s=1.5)),
        Displaced(RID),
        Suspended(RID, SO_FAR),
        Accepted(RID, 3, 17, (), True),
        Begun(RID, pack_ids((1, 2**31)), 9, (5, -6), 0),
        Traced(RID, 10.0, 10.5, 12.0, 1, (TraceSpan("decode", 0, 0.5, 2.0, 7, 7, 0.5, 1.25),)),
        Pong(Boot("b"), 12, owes=True),
        StepEntries(
            4,
            (
                TokenDelta(RID, 0, 0, "text", "hé", 1),
                TokenDelta(
                    RID, 1, 1, "reasoning", "x", 1, (TokenLogprob(5, "x", -0.5, ((6, "y", -1.0),)),)
                ),
                TokenDelta(RID, 1, 1, "text", "y", 2, (), pack_ids((5, 6))),
                TokenDelta(RID, 1, 1, "text", "", 1, (), b"", ((-0.5, ((6, -1.0),)),)),
                ToolCallDelta(RID, 2, 0, 0, "call_1", "f", "", 1, pack_ids((5,))),
                ToolCallDelta(RID, 2, 0, 0, None, None, "", 0, b"", ((-0.5, ()),)),
                ToolCallDelta(RID, 2, 0, 0, "call_1", "f", "", 3),
                ToolCallDelta(RID, 3, 0, 0, None, None, '{"a":1}', 3),
                PrefillProgress(RID, 4, 10, 20),
                ChoiceEnd(RID, 5, 0, "stop", "END"),
                Finished(RID, 6, Usage(prompt_tokens=4, decode_s=0.25)),
                Failed(RID, 7, "runner_lost", "gone", Usage(), {"x": 1}),
            ),
        ),
    ],
)
def test_frames_for_a_gateway_come_back_as_they_went(message: ToGateway) -> None:
    assert unpack_to_gateway(pack_to_gateway(message)) == message


def test_a_request_id_names_its_owner() -> None:
    made = request_id(NodeId("n1"), "0", Boot("ab"), 255)
    assert owner_of(made) == ("n1", "0")
    assert owner_of(RequestId("chatcmpl-1")) is None


def entry_frame(row: object) -> bytes:
    return pack(["step", 1, [row]])


@pytest.mark.parametrize(
    "row",
    [
        ["t", RID, 0, 0, "text", "a"],
        ["t", RID, 0, 0, "speech", "a", 1],
        ["t", RID, 0, 0, "text", "a", 1, [], 0],
        ["t", RID, 0, 0, "text", "a", 1, [[5, "a", -0.5]]],
        ["c", RID, 0, 0, 0, None, None, ""],
        ["e", RID, 0, 0, "stop"],
        ["e", RID, 0, 0, "bored", None],
        ["f", RID, 0],
        ["f", RID, 0, {"prompt_tokens": "many"}],
        ["x", RID, 0, "internal", "gone", {}],
        ["x", RID, 0, "boredom", "gone", {}, {}],
        "t",
        [],
    ],
)
def test_an_entry_that_is_not_whole_is_refused(row: object) -> None:
    with pytest.raises(BadMessage, match="not a frame for a gateway"):
        unpack_to_gateway(entry_frame(row))


def test_an_array_that_says_it_is_huge_is_refused_without_room_for_it() -> None:
    for data in (b"\x93\xa4step\x00\xdd\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff\xa4step"):
        with pytest.raises(BadMessage):
            unpack_to_gateway(data)


FIRST_IN_THREADS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from bus.wire.codec import KINDS, decode_body
from bus.wire.errors import BadMessage

sys.setswitchinterval(1e-5)
assert not any(cls.__pydantic_complete__ for cls in KINDS.values())

def read(kind):
    try:
        return type(decode_body(kind, {"node": "n1"}))
    except BadMessage as error:
        return str(error)

kinds = sorted(KINDS)
with ThreadPoolExecutor(8) as threads:
    seen = list(threads.map(read, [kind for kind in kinds for _ in range(8)]))
assert seen == [read(kind) for kind in kinds for _ in range(8)], seen
"""


def test_threads_may_read_the_first_message_of_a_kind_at_once() -> None:
    command = [sys.executable, "-P", "-c", FIRST_IN_THREADS]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
