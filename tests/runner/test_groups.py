"""Groups of real ranks on a real ring: the tokens of one rank, and nobody left waiting.

Every rank is a process on loopback. In float32 a group says exactly what one rank says.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from bus.wire.messages.control import AskRunner, RunnerReport, SlotDrain
from bus.wire.messages.requests import GenerationRequest
from bus.wire.messages.tokens import Cancel, Failed, Finished
from runner.lifecycle import GROUP_LOST, LOAD_FAILED, STOPPED
from tests.harness.families import MODELS, QUANTISED, write_model
from tests.harness.group_requests import (
    assert_same,
    endless,
    play,
    play_prefix,
    text_hand,
    token_hand,
)
from tests.harness.ports import free_ports
from tests.harness.ranks import (
    LAYERS,
    PIPELINE_2,
    PIPELINE_3,
    TENSOR_2,
    TINY,
    Layers,
    become,
    group_spec,
    one_gateway,
    ready_group,
    stages,
    started_ranks,
)
from tests.harness.slot import Slot, request

pytestmark = pytest.mark.slow

Outcomes = dict[str, Any]


Alone = tuple[Outcomes, tuple[str, int]]


def alone(model: Path, hand: Sequence[GenerationRequest]) -> Outcomes:
    """What one rank says."""
    with one_gateway(model) as gateway:
        return play(gateway, hand)


@pytest.fixture(scope="module")
def one_rank() -> Alone:
    """What the bundled model says, and then to a prompt that begins like another."""
    with one_gateway(TINY) as gateway:
        return play(gateway, text_hand()), play_prefix(gateway)


SHAPES = [
    pytest.param("pipeline", PIPELINE_2, id="pipeline of 2", marks=pytest.mark.proof),
    pytest.param("tensor", TENSOR_2, id="tensor over 2", marks=pytest.mark.proof),
    pytest.param("pipeline", PIPELINE_3, id="pipeline of 3", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("sharding", "layers"), SHAPES)
def test_a_group_says_what_one_rank_says(one_rank: Alone, sharding: str, layers: Layers) -> None:
    with ready_group(TINY, sharding, layers) as (slots, gateway):
        wanted, prefix = one_rank
        assert_same(play(gateway, text_hand()), wanted)
        assert play_prefix(gateway) == prefix
        assert prefix[1] > 0
        cancelled = gateway.submit(endless("cancelled"))
        gateway.until(lambda: cancelled.tokens > 5, "some tokens")
        gateway.send(Cancel(endless("cancelled").request_id, "client"))
        gateway.ended(cancelled)
        assert cancelled.finishes == ["cancelled"]
        again = gateway.submit(request("again", "Count from one to ten:", max_tokens=24))
        gateway.ended(again)
        assert again.text() == wanted["greedy"]["text"][0]
        assert slots[0].process.poll() is None


SETTINGS = MODELS | QUANTISED
FAMILIES = [
    pytest.param("llama", [(2, 4), (0, 2)], id="llama"),
    pytest.param("llama, 4 bits", [(1, 4), (0, 1)], id="llama, 4 bits"),
    pytest.param("qwen3_moe", [(1, 4), (0, 1)], id="qwen3_moe"),
    pytest.param("gemma3_text", [(2, 4), (0, 2)], id="gemma3_text"),
    pytest.param(
        "gemma3_text",
        [(3, 4), (0, 3)],
        id="gemma3_text, one kind of layer in a rank",
    ),
    pytest.param(
        "qwen3_next",
        [(3, 4), (0, 3)],
        id="qwen3_next, one kind of layer in a rank",
    ),
    pytest.param("deepseek_v3", [(2, 4), (0, 2)], id="deepseek_v3"),
    pytest.param("mamba2", [(2, 4), (0, 2)], id="mamba2"),
]


@pytest.fixture(scope="module")
def family_alone(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[Path, Outcomes]]:
    known: dict[str, tuple[Path, Outcomes]] = {}

    def outcomes(family: str) -> tuple[Path, Outcomes]:
        if family not in known:
            folder = write_model(tmp_path_factory.mktemp("family") / family, SETTINGS[family])
            known[family] = folder, alone(folder, token_hand())
        return known[family]

    return outcomes


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize(("family", "layers"), FAMILIES)
def test_a_pipeline_of_any_family_says_what_one_rank_says(
    family_alone: Callable[[str], tuple[Path, Outcomes]], family: str, layers: Layers
) -> None:
    folder, wanted = family_alone(family)
    with ready_group(folder, "pipeline", layers) as (_, gateway):
        assert_same(play(gateway, token_hand()), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("family", [pytest.param("llama", marks=pytest.mark.proof), "qwen3_next"])
def test_rows_enough_for_every_lane_say_what_they_say_on_one_rank(
    tmp_path: Path, family: str
) -> None:
    folder, hand = write_model(tmp_path / family, MODELS[family]), token_hand(14)
    wanted = alone(folder, hand)
    with ready_group(folder, "pipeline", [(3, 4), (0, 3)]) as (_, gateway):
        assert_same(play(gateway, hand), wanted)


@pytest.mark.slow
@pytest.mark.proof
@pytest.mark.parametrize("family", ["llama, 4 bits", "qwen3_moe", "deepseek_v3"])
def test_tensor_ranks_of_a_family_say_what_one_rank_says(
    family_alone: Callable[[str], tuple[Path, Outcomes]], family: str
) -> None:
    folder, wanted = family_alone(family)
    with ready_group(folder, "tensor", [(0, 4)] * 2) as (_, gateway):
        assert_same(play(gateway, token_hand()), wanted)


@pytest.mark.slow
def test_a_family_without_tensor_sharding_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "mamba2", MODELS["mamba2"])
    with started_ranks(folder, group_spec("tensor", [(0, 4)] * 2)) as slots:
        become(slots)
        assert slots[0].exit_code(40.0) == LOAD_FAILED
        assert slots[0].ended is not None
        assert "mamba2 cannot be run as tensor" in slots[0].ended.message


@pytest.fixture(scope="module")
def pair() -> Iterator[Callable[[], Any]]:
    yield lambda: ready_group(TINY, "pipeline", stages(LAYERS, 2))


@pytest.mark.proof  # tests/processes/test_cluster.py kills one of a group over real nodes
def test_a_killed_follower_ends_the_group_and_its_requests(pair: Callable[[], Any]) -> None:
    with pair() as (slots, gateway):
        stream = gateway.submit(endless("a"))
        gateway.until(lambda: stream.tokens > 5, "some tokens")
        slots[1].process.kill()
        gateway.ended(stream, seconds=10)
        assert isinstance(stream.end, Failed)
        assert stream.end.reason == "runner_lost"
        assert slots[0].exit_code() == GROUP_LOST


def test_a_killed_lead_ends_its_followers(pair: Callable[[], Any]) -> None:
    with pair() as (slots, _):
        slots[0].process.kill()
        assert slots[1].exit_code() == GROUP_LOST
        assert slots[1].ended is not None
        # on a busy machine its silence may be noticed before its connection is
        assert re.search("the lead on node node-0 (is gone|was silent)", slots[1].ended.message)


def test_a_frozen_follower_ends_the_group_and_its_requests(pair: Callable[[], Any]) -> None:
    with pair() as (slots, gateway):
        stream = gateway.submit(endless("a"))
        gateway.until(lambda: stream.tokens > 5, "some tokens")
        os.kill(slots[1].process.pid, signal.SIGSTOP)
        gateway.ended(stream, seconds=15)
        assert isinstance(stream.end, Failed)
        assert stream.end.reason == "runner_lost"
        assert slots[0].exit_code() == GROUP_LOST
        assert slots[0].ended is not None
        assert "rank 1 on node node-1 was silent for 3 s" in slots[0].ended.message


def weights_bytes(slot: Slot) -> int:
    """What a rank has in memory beside rows and kept prefixes, by its own account."""
    slot.other.clear()
    slot.tell(AskRunner(instance=slot.spec.instance))
    slot.until(lambda: bool(slot.other), "a report")
    report = slot.other[0]
    assert isinstance(report, RunnerReport)
    memory = report.memory
    return memory["active_bytes"] - memory["prefix_bytes"] - memory["kv_bytes"]


def test_each_rank_holds_its_own_weights_and_no_others() -> None:
    layer_bytes = 4 * (2 * 192 * 256 + 2 * 192 * 128 + 3 * 192 * 384 + 2 * 192 + 2 * 32)
    embedding_bytes, norm_bytes = 4 * 2048 * 192, 4 * 192
    with ready_group(TINY, "pipeline", PIPELINE_2) as (slots, _):
        for slot in slots:
            held = slot.hellos[-1].total_bytes
            assert held in (
                LAYERS // 2 * layer_bytes + embedding_bytes,
                LAYERS // 2 * layer_bytes + embedding_bytes + norm_bytes,
            )
            slot.until(
                lambda slot=slot, held=held: held <= weights_bytes(slot) < 1.1 * held,
                "a resting rank's memory is its weights and its kept prefixes",
            )


@pytest.mark.proof
def test_an_idle_follower_burns_next_to_nothing(pair: Callable[[], Any]) -> None:
    with pair() as (slots, gateway):
        stream = gateway.submit(request("a", max_tokens=4))
        gateway.ended(stream)
        follower = psutil.Process(slots[1].process.pid)
        gateway.until(lambda: slots[1].phase == "ready", "a hello")
        before = sum(follower.cpu_times()[:2])
        ends_at = slots[1].hellos[-1].step, len(slots[1].hellos) + 6
        slots[1].until(lambda: len(slots[1].hellos) >= ends_at[1], "six seconds of hellos")
        spent_s = sum(follower.cpu_times()[:2]) - before
        assert spent_s < 0.9, f"{spent_s:.2f} s of processor in six idle seconds"


def test_a_drain_ends_followers_with_their_lead_and_not_before(pair: Callable[[], Any]) -> None:
    with pair() as (slots, gateway):
        stream = gateway.submit(request("a", "Count:", max_tokens=60))
        gateway.until(lambda: stream.tokens > 2, "some tokens")
        for slot in reversed(slots):
            drain = SlotDrain(
                instance=slot.spec.instance, generation=1, deadline_s=30.0, why="made way"
            )
            slot.tell(drain)
        gateway.ended(stream)
        assert isinstance(stream.end, Finished)
        assert [slot.exit_code() for slot in slots] == [STOPPED, STOPPED]


def test_a_rank_that_never_comes_is_named_by_the_lead() -> None:
    group = group_spec("pipeline", stages(LAYERS, 2), form_deadline_s=2.0)
    with started_ranks(TINY, group) as slots:
        become(slots[:1])
        assert slots[0].exit_code(20.0) == GROUP_LOST
        assert slots[0].ended is not None
        assert "rank 1 on node node-1 did not connect within 2 s" in slots[0].ended.message


def test_a_rank_with_another_key_is_no_part_of_the_group() -> None:
    group = group_spec("pipeline", stages(LAYERS, 2), form_deadline_s=2.0)
    stranger = group.model_copy(update={"secret": "00" * 32})
    with started_ranks(TINY, group) as slots:
        slots[1].spec = slots[1].spec.model_copy(update={"group": stranger})
        become(slots)
        assert slots[0].exit_code(20.0) == GROUP_LOST
        assert slots[1].exit_code(20.0) == GROUP_LOST


@pytest.mark.proof
def test_a_stranger_at_a_ring_s_port_ends_that_generation_by_name_and_hears_nothing() -> None:
    group = group_spec("pipeline", stages(LAYERS, 2), form_deadline_s=3.0)
    ports = [int(address.rpartition(":")[2]) for rank in group.ranks for address in rank.ring]
    with started_ranks(TINY, group) as slots:
        become(slots)
        with _intruder(ports) as stranger:
            assert [slot.exit_code(40.0) for slot in slots] == [GROUP_LOST, GROUP_LOST]
            heard = _heard(stranger)
        said = [slot.ended.message for slot in slots if slot.ended is not None]
    assert len(said) == 2 and all(said), said
    assert bytes.fromhex(group.secret) not in heard


def _intruder(ports: list[int]) -> socket.socket:
    """Connect to the first that listens, before the rank whose place it is; talk nonsense."""
    end = time.monotonic() + 30.0
    while time.monotonic() < end:
        for port in ports:
            with contextlib.suppress(OSError):
                link = socket.create_connection(("127.0.0.1", port), 1.0)
                link.sendall(b"GET / HTTP/1.1\r\n\r\n" * 4)
                return link
        time.sleep(0.001)
    raise AssertionError("no rank listens")


def _heard(link: socket.socket) -> bytes:
    heard = b""
    link.settimeout(2.0)
    with contextlib.suppress(OSError):
        while part := link.recv(4096):
            heard += part
    return heard


def test_a_ring_that_does_not_form_is_given_up_in_time() -> None:
    group = group_spec("pipeline", stages(LAYERS, 2), form_deadline_s=4.0)
    (elsewhere,) = free_ports(1)
    other = group.ranks[0].model_copy(update={"ring": (f"127.0.0.1:{elsewhere}",)})
    astray = group.model_copy(update={"ranks": (other, group.ranks[1])})
    with started_ranks(TINY, group) as slots:
        slots[1].spec = slots[1].spec.model_copy(update={"group": astray})
        become(slots)
        assert slots[0].exit_code(25.0) == GROUP_LOST
        assert slots[0].ended is not None
        assert "rank 0 could not join the ring" in slots[0].ended.message


@pytest.mark.skipif("sys.platform == 'darwin'")
def test_jaccl_where_there_is_none_is_refused_clearly() -> None:
    group = group_spec("pipeline", stages(LAYERS, 2), backend="jaccl")
    with started_ranks(TINY, group) as slots:
        become(slots)
        assert slots[0].exit_code(20.0) == GROUP_LOST
        assert slots[0].ended is not None
        assert "this machine's MLX has no 'jaccl' backend" in slots[0].ended.message
