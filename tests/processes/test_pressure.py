"""Runners whose rows take too much memory: a process under RLIMIT_DATA, and a rank whose measure is
simulated.

Streams whose KV does not fit end one after another, with their text and their own reason; the
others say what they would have said anyway, and the processes live.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from bus.process.memory import data_bytes
from bus.wire.messages.requests import GenerationRequest
from bus.wire.messages.tokens import Finished
from tests.harness.ranks import ready_group, stages
from tests.harness.slot import FakeGateway, Slot, Stream, request, started_slot
from tests.harness.toy_model import save_toy_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
STREAMS = 6
TOKENS = 400
WIDE_KV = {"layers": 32, "hidden": 512, "heads": 8, "wide": 256}
"""128 KiB of KV a token in float32: a stream takes 52 MB in the end, six of them 315 MB."""
ROOM_BYTES = 100_000_000
"""Beside what the process takes after its load: never enough for six."""
LONG_MS = 150_000


def taken_bytes(slot: Slot) -> int:
    found = data_bytes(Path(f"/proc/{slot.process.pid}/status").read_text())
    assert found is not None
    return found


def grant(slot: Slot, limit_bytes: int) -> None:
    """Have the system grant the process so much memory of its own."""
    _, most = resource.prlimit(slot.process.pid, resource.RLIMIT_DATA)
    resource.prlimit(slot.process.pid, resource.RLIMIT_DATA, (limit_bytes, most))


def settled_bytes(slot: Slot) -> int:
    """What the process takes once it rests: the same at two of its hellos, which are 1 s apart."""
    seen: dict[int, int] = {}

    def is_settled() -> bool:
        seen[len(slot.hellos)] = taken_bytes(slot)
        last = [seen[count] for count in sorted(seen)][-3:]
        return len(last) == 3 and len(set(last)) == 1

    slot.until(is_settled, "rest")
    return taken_bytes(slot)


def asked(tokens: int = TOKENS) -> list[GenerationRequest]:
    """Streams that differ, the first of the most urgent class, the last of the least."""
    priorities = [1, *[10] * (STREAMS - 2), 50]
    return [
        request(f"r{n}", f"hello world {n}", max_tokens=tokens, priority=priority)
        for n, priority in enumerate(priorities)
    ]


def ended_for_memory(streams: list[Stream]) -> list[int]:
    return [n for n, one in enumerate(streams) if one.finishes == ["memory_pressure"]]


@pytest.fixture(scope="module")
def wide_kv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy_model(tmp_path_factory.mktemp("models") / "toy", **WIDE_KV)


@pytest.mark.proof
def test_streams_beyond_a_memory_limit_end_with_their_text_and_the_others_go_on(
    tmp_path: Path, wide_kv: Path
) -> None:
    with started_slot(tmp_path / "free", wide_kv, memory_limit_bytes=4 << 30) as slot:
        gateway = FakeGateway(slot.ready())
        freely = [gateway.submit(one, remaining_ms=LONG_MS) for one in asked()]
        gateway.ended(*freely, seconds=150)
        gateway.close()
    assert [one.finishes for one in freely] == [["length"]] * STREAMS

    with started_slot(tmp_path / "short", wide_kv, memory_limit_bytes=4 << 30) as slot:
        before = settled_bytes(slot.ready())
        grant(slot, (before + ROOM_BYTES) * 8 // 7)
        gateway = FakeGateway(slot)
        streams = [gateway.submit(one, remaining_ms=LONG_MS) for one in asked()]
        gateway.ended(*streams, seconds=150)
        ended = ended_for_memory(streams)
        print(
            f"{before / 1e6:.0f} MB before, {taken_bytes(slot) / 1e6:.0f} MB after; ended: "
            f"{[(n, streams[n].tokens) for n in ended]}"
        )
        assert 1 <= len(ended) < STREAMS
        assert STREAMS - 1 in ended, "the least urgent ends first"
        assert 0 not in ended, "the most urgent goes on"
        for n, stream in enumerate(streams):
            assert isinstance(stream.end, Finished)
            if n in ended:
                assert stream.text() and freely[n].text().startswith(stream.text())
            else:
                assert stream.finishes == ["length"] and stream.text() == freely[n].text()
        assert slot.process.poll() is None
        after = gateway.submit(request("after", max_tokens=40))
        gateway.ended(after)
        assert after.finishes == ["length"]
        gateway.close()


@pytest.mark.parametrize("sharding", ["pipeline", pytest.param("tensor", marks=pytest.mark.proof)])
def test_rows_beyond_a_followers_room_end_on_all_ranks_by_the_leads_plan(
    tmp_path: Path, sharding: str
) -> None:
    model = save_toy_model(tmp_path / "toy")
    layers = [(0, 2)] * 2 if sharding == "tensor" else stages(2, 2)
    with ready_group(model, sharding, layers, faults={1: "swollen"}) as (slots, gateway):
        streams = [gateway.submit(one, remaining_ms=LONG_MS) for one in asked(480)]
        gateway.ended(*streams, seconds=150)
        # of the lowest class, then the youngest of the next: four are left
        assert ended_for_memory(streams) == [4, 5]
        assert streams[5].tokens < streams[4].tokens < 480
        for stream in streams[:4]:
            assert stream.finishes == ["length"]
            assert isinstance(stream.end, Finished)
            assert stream.end.usage.completion_tokens == 480
        assert all(slot.process.poll() is None for slot in slots)
        again = [gateway.submit(request(f"again {n}", max_tokens=60)) for n in range(2)]
        gateway.ended(*again, seconds=60)
        assert again[0].text() == again[1].text()
