"""A real runner process, a real engine with random weights, real sockets."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.wire.ids import RequestId
from bus.wire.messages.control import AskRunner, RunnerReport, SlotDrain
from bus.wire.messages.gateways import CancelRow, RowCancelled
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    TextPart,
    TokensPrompt,
    ToolSpec,
)
from bus.wire.messages.tokens import (
    Accepted,
    Cancel,
    Credit,
    Failed,
    Finished,
    Goodbye,
    Hello,
    Pong,
    PrefillProgress,
    Refused,
    Traced,
    Welcome,
)
from tests.harness.faulty_runner import WAITS_S
from tests.harness.slot import ROOT, FakeGateway, Slot, request, started_slot
from tests.harness.toy_model import save_toy_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy_model(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture(scope="module")
def slot(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Slot]:
    home = tmp_path_factory.mktemp("home")
    with started_slot(home, model, max_rows=4, max_waiting=2, drop_idle_s=2.0) as started:
        yield started.ready()


@pytest.fixture
def gateway(slot: Slot, request: pytest.FixtureRequest) -> Iterator[FakeGateway]:
    made = FakeGateway(slot, name=request.node.name[:60])
    yield made
    made.close()


def long_request(name: str, tokens: int = 1500):
    return request(name, max_tokens=tokens)


def test_a_request_streams_to_its_length_with_usage(gateway: FakeGateway) -> None:
    stream = gateway.submit(request("plain", max_tokens=20))
    gateway.ended(stream)
    assert isinstance(stream.answer, Accepted)
    assert stream.answer.position == 0
    assert stream.finishes == ["length"]
    assert isinstance(stream.end, Finished)
    usage = stream.end.usage
    assert usage.prompt_tokens == stream.answer.prompt_tokens
    assert usage.completion_tokens == 20
    assert usage.prefill_s > 0.0
    assert usage.decode_s > 0.0
    assert isinstance(gateway.heard[0], Welcome)


def test_a_traced_request_is_told_of_once_before_its_end(gateway: FakeGateway) -> None:
    plain = gateway.submit(request("untraced", max_tokens=9))
    asked = request("traced", "hello world " * 40, max_tokens=9, trace=True)
    traced = gateway.submit(asked)
    gateway.ended(plain, traced)
    # it was sent before the end, and what is sent arrives in order
    (told,) = [one for one in gateway.heard if isinstance(one, Traced)]
    assert told.request_id == asked.request_id
    assert told.received_at <= told.accepted_at <= told.told_at
    names = [one.name for one in told.spans]
    assert names[:2] == ["template", "queued"] and names[-1] == "end"
    assert isinstance(traced.end, Finished)
    prompt = sum(one.tokens for one in told.spans if one.name == "prefill")
    assert prompt == traced.end.usage.prompt_tokens - traced.end.usage.cached_tokens
    assert sum(one.tokens for one in told.spans if one.name == "decode") == 8
    ends = [one.ended_s for one in told.spans]
    assert [one.began_s for one in told.spans] == [0.0, *ends[:-1]]
    assert ends[-1] == pytest.approx(told.told_at - told.received_at)


def test_the_same_request_says_the_same_alone_and_in_a_crowd(gateway: FakeGateway) -> None:
    alone = gateway.submit(request("alone", max_tokens=30))
    gateway.ended(alone)
    crowd = [
        gateway.submit(request(f"crowd{n}", "hello world", max_tokens=30, n=1)) for n in range(4)
    ]
    gateway.ended(*crowd)
    assert {stream.text() for stream in crowd} == {alone.text()}


def test_choices_differ_by_seed_and_repeat_by_it(gateway: FakeGateway) -> None:
    sampling = {"temperature": 1.0, "seed": 5}
    first = gateway.submit(request("n1", n=3, sampling=sampling, max_tokens=16))
    second = gateway.submit(request("n2", n=3, sampling=sampling, max_tokens=16))
    gateway.ended(first, second)
    texts = [first.text(choice) for choice in range(3)]
    assert len(set(texts)) == 3
    assert texts == [second.text(choice) for choice in range(3)]
    assert isinstance(first.end, Finished)
    assert first.end.usage.completion_tokens == 48


def test_a_stop_string_ends_the_text_and_is_not_shown(gateway: FakeGateway) -> None:
    whole = gateway.submit(request("whole", max_tokens=60))
    gateway.ended(whole)
    stop = whole.text()[10:13]
    cut = gateway.submit(request("cut", max_tokens=60, stop=(stop,)))
    gateway.ended(cut)
    assert cut.finishes == ["stop"]
    assert cut.text() == whole.text()[: whole.text().index(stop)]


def test_a_cancel_frees_the_row_and_the_request_still_ends(gateway: FakeGateway) -> None:
    stream = gateway.submit(long_request("cancelled"))
    gateway.until(lambda: len(stream.deltas) > 3, "some tokens")
    gateway.send(Cancel(RequestId("cancelled"), "client"))
    gateway.ended(stream)
    assert stream.finishes == ["cancelled"]
    assert isinstance(stream.end, Finished)
    assert stream.end.usage.completion_tokens < 1500


def test_a_request_is_ended_from_outside_as_by_its_client_and_a_repeat_is_told_the_same(
    slot: Slot, gateway: FakeGateway
) -> None:
    stream = gateway.submit(long_request("from-outside"))
    gateway.until(lambda: len(stream.deltas) > 3, "some tokens")

    def cancelled(name: str) -> bool:
        before = len(slot.other)
        slot.tell(CancelRow(slot="00", request=RequestId(name)))
        slot.until(lambda: len(slot.other) > before, "an answer")
        answer = slot.other[-1]
        assert isinstance(answer, RowCancelled) and answer.request == name
        return answer.found

    assert cancelled("from-outside")
    gateway.ended(stream)
    assert stream.finishes == ["cancelled"]
    assert cancelled("from-outside") and not cancelled("another")


def test_a_deadline_ends_with_its_own_reason(gateway: FakeGateway) -> None:
    stream = gateway.submit(long_request("late"), remaining_ms=300)
    gateway.ended(stream)
    assert isinstance(stream.end, Failed)
    assert stream.end.reason == "deadline"


def test_nothing_is_sent_without_credit_and_others_go_on(gateway: FakeGateway) -> None:
    slow = gateway.submit(long_request("slow", 40), credit=5)
    fast = gateway.submit(request("fast", max_tokens=40))
    gateway.ended(fast)
    assert len(slow.deltas) == 5
    gateway.send(Credit(RequestId("slow"), 0, 100))
    gateway.ended(slow)
    assert slow.text() == fast.text()


def test_a_reader_that_never_comes_back_is_failed(gateway: FakeGateway) -> None:
    stream = gateway.submit(long_request("stalled", 40), credit=3)
    gateway.ended(stream, seconds=10.0)
    assert isinstance(stream.end, Failed)
    assert stream.end.reason == "deadline"
    assert len(stream.deltas) == 3


def test_a_full_queue_is_refused_with_its_position(gateway: FakeGateway) -> None:
    streams = [gateway.submit(long_request(f"full{n}", 600)) for n in range(7)]
    gateway.until(lambda: all(stream.answer for stream in streams), "answers")
    positions = [s.answer.position for s in streams if isinstance(s.answer, Accepted)]
    assert positions == [0, 0, 0, 0, 0, 1]
    refused = streams[6].answer
    assert isinstance(refused, Refused)
    assert refused.refusal.reason == "queue_full"
    assert refused.refusal.position == 2
    assert refused.refusal.retry_after_s
    gateway.ended(*streams[:6])


def test_a_repeated_submit_is_done_once(gateway: FakeGateway) -> None:
    stream = gateway.submit(request("twice", max_tokens=30))
    gateway.submit(request("twice", max_tokens=30))
    gateway.ended(stream)
    assert stream.finishes == ["length"]
    gateway.submit(request("twice", max_tokens=30))
    gateway.until(lambda: isinstance(stream.answer, Refused), "a refusal")
    assert isinstance(stream.answer, Refused)
    assert stream.answer.refusal.reason == "conflict"


def test_wrong_words_are_refused_alone(gateway: FakeGateway) -> None:
    good = gateway.submit(request("good", max_tokens=100))
    other = gateway.submit(request("other-model", model="nobody"))
    empty = gateway.submit(request("empty", ""))
    huge = gateway.submit(request("huge", prompt=TokensPrompt(token_ids=tuple([5] * 3000))))
    gateway.ended(good)
    for stream, reason in ((other, "unknown_model"), (empty, "bad_request"), (huge, "context_len")):
        assert isinstance(stream.answer, Refused)
        assert stream.answer.refusal.reason.startswith(reason)


def test_an_exact_repeat_comes_from_the_prefix_cache(gateway: FakeGateway) -> None:
    prompt = TokensPrompt(token_ids=tuple(3 + n % 500 for n in range(1200)))
    first = gateway.submit(request("first", prompt=prompt))
    gateway.ended(first)
    again = gateway.submit(request("again", prompt=prompt))
    gateway.ended(again)
    assert isinstance(first.end, Finished)
    assert isinstance(again.end, Finished)
    assert first.end.usage.cached_tokens == 0
    assert again.end.usage.cached_tokens >= 1199
    assert again.text() == first.text()
    progress = [entry for entry in first.entries if isinstance(entry, PrefillProgress)]
    assert progress
    assert progress[-1].total == 1200


def test_the_pong_tells_the_engines_own_step(gateway: FakeGateway) -> None:
    stream = gateway.submit(request("steps", max_tokens=50))
    gateway.ended(stream)
    gateway.until(lambda: any(isinstance(m, Pong) for m in gateway.heard), "a pong")
    before = max(m.step for m in gateway.heard if isinstance(m, Pong))
    gateway.ended(gateway.submit(request("more steps", max_tokens=50)))

    def advanced() -> bool:
        return any(isinstance(m, Pong) and m.step >= before + 49 for m in gateway.heard)

    gateway.until(advanced, "a pong with a later step")


def test_without_a_common_protocol_there_is_a_goodbye(slot: Slot) -> None:
    other = FakeGateway(slot, name="from-the-future")
    other.send(Hello("future", slot.hellos[-1].boot, 900, 901))
    other.until(lambda: any(isinstance(m, Goodbye) for m in other.heard), "a goodbye")
    goodbye = next(m for m in other.heard if isinstance(m, Goodbye))
    assert "900" in goodbye.message
    other.close()


def test_a_silent_gateways_requests_are_cancelled_within_five_seconds(slot: Slot) -> None:
    mute = FakeGateway(slot, name="mute")
    stream = mute.submit(long_request("orphan", 1900), credit=100_000)
    others = [mute.submit(long_request(f"orphan{n}", 1900)) for n in range(3)]
    mute.until(lambda: bool(stream.deltas), "tokens")
    slot.until(lambda: slot.hellos[-1].open_requests == 4, "a hello that counts them")
    mute.close()
    gone_at = time.monotonic()
    slot.until(lambda: slot.hellos[-1].open_requests == 0, "its requests cancelled", 5.0)
    assert time.monotonic() - gone_at < 5.0
    assert others


def test_a_report_tells_the_flight_so_far(slot: Slot, gateway: FakeGateway) -> None:
    gateway.ended(gateway.submit(request("recorded")))
    slot.tell(AskRunner(instance=slot.spec.instance))
    slot.until(lambda: any(isinstance(one, RunnerReport) for one in slot.other), "a report")
    report = next(one for one in slot.other if isinstance(one, RunnerReport))
    phases = [entry["phase"] for entry in report.recorder if entry.get("request_id") == "recorded"]
    assert phases[:2] == ["task_submission", "prompt_build"]
    assert phases[-1] == "completion"
    assert report.memory["active_bytes"] > 0


def test_the_flight_tells_once_what_the_parser_found_in_an_answer(tmp_path: Path) -> None:
    call = '<tool_call>{"name": "look", "arguments": {"at": "sea"}}</tool_call>'
    script = tmp_path / "script.json"
    script.write_text(
        json.dumps([["", "Yes."], ["sea", f"<think>I think so.</think>{call}{call}"]])
    )
    prompt = ChatPrompt(
        messages=(ChatMessage(role="user", parts=(TextPart(text="Look at the sea."),)),),
        tools=(ToolSpec(name="look"),),
    )
    tiny = ROOT / "conf" / "tiny"
    with started_slot(tmp_path / "home", tiny, script=script) as slot:
        slot.ready()
        gateway = FakeGateway(slot)
        asked = request("thinks", max_tokens=200, prompt=prompt, ignore_eos=False)
        gateway.ended(gateway.submit(asked))
        slot.tell(AskRunner(instance=slot.spec.instance))
        slot.until(lambda: any(isinstance(one, RunnerReport) for one in slot.other), "a report")
        report = next(one for one in slot.other if isinstance(one, RunnerReport))
        gateway.close()
    found = [entry["found"] for entry in report.recorder if entry["phase"] == "parser"]
    assert found == ["thinking", "tool_call"]
    assert "sea" not in str(report.recorder), "never a word of an answer"


def test_draining_refuses_the_new_and_finishes_the_old(tmp_path: Path, model: Path) -> None:
    with started_slot(tmp_path / "home", model) as slot:
        slot.ready()
        gateway = FakeGateway(slot)
        stream = gateway.submit(long_request("old", 400))
        gateway.until(lambda: bool(stream.deltas), "tokens")
        slot.tell(SlotDrain(instance=slot.spec.instance, generation=1, deadline_s=20, why="test"))
        slot.until(lambda: slot.phase == "draining", "draining")
        new = gateway.submit(request("new"))
        gateway.ended(stream)
        assert stream.finishes == ["length"]
        assert isinstance(new.answer, Refused)
        assert new.answer.refusal.reason == "draining"
        assert slot.exit_code() == 0
        assert slot.ended is not None
        assert slot.ended.exit_code == 0
        gateway.close()


def test_a_gateway_that_left_unheard_does_not_disturb_the_goodbye(
    tmp_path: Path, model: Path
) -> None:
    with started_slot(tmp_path, model) as slot:
        slot.ready()
        gateway = FakeGateway(slot)
        gateway.until(lambda: gateway.heard, "a welcome")
        gateway.close()
        slot.tell(
            SlotDrain(instance=slot.spec.instance, generation=1, deadline_s=30, why="made way")
        )
        assert slot.exit_code() == 0


def test_sigterm_gives_every_open_request_its_end(tmp_path: Path, model: Path) -> None:
    with started_slot(tmp_path / "home", model) as slot:
        slot.ready()
        gateway = FakeGateway(slot)
        streams = [gateway.submit(long_request(f"open{n}", 1800)) for n in range(3)]
        gateway.until(lambda: all(stream.deltas for stream in streams), "tokens")
        slot.process.send_signal(signal.SIGTERM)
        gateway.ended(*streams)
        assert {s.end.reason for s in streams if isinstance(s.end, Failed)} == {"model_unavailable"}
        assert slot.exit_code() == 0
        gateway.until(lambda: any(isinstance(m, Goodbye) for m in gateway.heard), "a goodbye")
        gateway.close()


@pytest.mark.proof
def test_a_runner_waits_for_a_spec_as_long_as_there_is_a_worker(
    tmp_path: Path, model: Path
) -> None:
    with started_slot(tmp_path / "home", model, fault="impatient") as slot:
        slot.until(lambda: bool(slot.hellos), "a hello")
        end = time.monotonic() + 4 * WAITS_S
        slot.until(lambda: time.monotonic() > end, "time passes")
        assert slot.phase == "idle" and slot.process.poll() is None
        slot.worker.close()
        assert slot.process.wait(30 * WAITS_S) == 73


def test_a_model_that_cannot_be_loaded_has_its_own_exit_code(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with started_slot(tmp_path / "home", tmp_path / "nothing") as slot:
        slot.until(lambda: bool(slot.hellos), "a hello")
        slot.tell(slot.spec)
        assert slot.exit_code(60.0) == 72
        assert slot.ended is not None
        assert slot.ended.exit_code == 72
        assert "nothing" in slot.ended.message


def test_a_wedged_step_ends_the_runner_with_its_own_code(tmp_path: Path, model: Path) -> None:
    with started_slot(tmp_path / "home", model, fault="wedge") as slot:
        slot.ready()
        gateway = FakeGateway(slot)
        stream = gateway.submit(long_request("stuck", 100))
        asked_at = time.monotonic()
        gateway.ended(stream, seconds=15.0)
        assert isinstance(stream.end, Failed)
        assert stream.end.reason == "runner_lost"
        assert 4.0 < time.monotonic() - asked_at < 12.0
        assert slot.exit_code() == 70
        assert slot.ended is not None
        assert "step" in slot.ended.message
        assert "read" in engine_frames(slot)
        gateway.close()


def engine_frames(slot: Slot) -> list[str]:
    """The functions that the engine's thread was in, as the runner told its worker at its end."""
    reports = [one for one in slot.other if isinstance(one, RunnerReport)]
    assert len(reports) == 1, "one account, before the last word"
    told = json.loads(reports[0].stacks)
    assert (told["pid"], told["method"]) == (slot.process.pid, "in-process")
    (engine,) = (one for one in told["threads"] if one["name"] == "engine")
    return [frame["name"] for frame in engine["frames"]]


def test_a_load_that_hangs_tells_where_before_it_is_given_up(tmp_path: Path, model: Path) -> None:
    with started_slot(tmp_path / "home", model, fault="unloaded", load_deadline_s=0.5) as slot:
        slot.until(lambda: bool(slot.hellos), "a first hello")
        slot.tell(slot.spec)
        assert slot.exit_code() == 72
        assert slot.ended is not None and "not ready within 0.5 s" in slot.ended.message
        assert "load_engine" in engine_frames(slot)


def test_an_engine_that_raises_ends_the_runner_with_its_own_code(
    tmp_path: Path, model: Path
) -> None:
    with started_slot(tmp_path / "home", model, fault="raise") as slot:
        slot.ready()
        gateway = FakeGateway(slot)
        streams = [gateway.submit(long_request(f"broken{n}", 100)) for n in range(3)]
        gateway.ended(*streams)
        assert {s.end.reason for s in streams if isinstance(s.end, Failed)} == {"runner_lost"}
        assert slot.exit_code() == 71
        assert slot.ended is not None
        assert "the device is lost" in slot.ended.message
        gateway.close()


def test_a_request_that_never_becomes_tokens_ends_the_runner(tmp_path: Path, model: Path) -> None:
    with started_slot(tmp_path / "home", model, fault="ponder") as slot:
        slot.ready()
        gateway = FakeGateway(slot)
        stream = gateway.submit(request("pondered"))
        gateway.until(lambda: stream.answer is not None, "an answer")
        assert isinstance(stream.answer, Refused)
        assert stream.answer.refusal.reason == "not_ready"
        assert slot.exit_code() == 70
        assert slot.ended is not None
        assert "preparing a request took more than 2 s" in slot.ended.message
        gateway.close()


@pytest.mark.proof
def test_a_slow_engine_is_not_taken_for_a_stuck_one(tmp_path: Path, model: Path) -> None:
    with started_slot(tmp_path / "home", model, fault="slow") as slot:
        slot.ready()
        gateway = FakeGateway(slot)
        stream = gateway.submit(request("patient", max_tokens=14))
        gateway.ended(stream)
        assert stream.finishes == ["length"]
        assert slot.phase == "ready"
        gateway.close()


def test_a_runner_whose_supervisor_died_ends_itself(tmp_path: Path, model: Path) -> None:
    with started_slot(tmp_path / "home", model, supervised=True) as slot:
        slot.ready()
        assert slot.process.stdin is not None
        slot.process.stdin.close()
        assert slot.exit_code() in (0, 75)
