"""The kept traces: rows in, lists, one, statistics and bounds out."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bus.process.endpoints import Endpoints
from bus.process.logs import Log
from bus.wire.ids import NodeId, RequestId
from gateway.records import NodeRecords, RecentQuery, TraceRecords, TraceRow, open_records
from gateway.records.traces import stats_told
from gateway.view.options import Options
from tests.harness.called_nodes import CalledNodes
from tests.harness.records_writer import row

NOW_S = 1_000_000.0
N1 = NodeId("n1")
R1 = RequestId("req-n1-h0-b-1")
R2 = RequestId("req-n1-h0-b-2")


def traced(name: str, **more: Any) -> TraceRow:
    made = {
        "request": name, "ended_at_s": NOW_S, "began_at_s": NOW_S - 2.0, "seconds": 2.0,
        "why": "asked", "spans": 3, "sums": b'{"gateway.read":0.5}',
        "trace": json.dumps({"request": name}).encode(), "model": "m",
    }  # fmt: skip
    return TraceRow(**{**made, **more})


def options(folder: Path, **more: Any) -> Options:
    return Options(
        node=N1,
        node_name="n1",
        endpoints=Endpoints(str(folder)),
        metrics_folder="",
        records_file=str(folder / "records.sqlite"),
        **more,
    )


Act = Callable[[NodeRecords, TraceRecords], Awaitable[None]]


def play(folder: Path, act: Act, **more: Any) -> None:
    records = open_records(
        options(folder, **more), Log(node="n1", process="g", stream=io.StringIO())
    )
    try:
        asyncio.run(act(records, TraceRecords(records, CalledNodes("n1", down="n2")["n1"], N1)))
    finally:
        records.close()


def test_a_trace_is_found_listed_and_removed_and_the_log_is_as_it_was(tmp_path: Path) -> None:
    async def act(records: NodeRecords, traces: TraceRecords) -> None:
        records.log_request(row("r0"))
        records.log_request(traced(R1))
        records.log_request(traced(R2, model="other", status=504, error="deadline"))
        found = await traces.latest(10, None)
        assert [one["request"] for one in found["traces"]] == [R2, R1]
        assert found["kept"] == 2 and found["bytes"] > 400
        listed = found["traces"][0]
        assert "trace" not in listed and "sums" not in listed
        assert (listed["status"], listed["error"], listed["spans"]) == (504, "deadline", 3)
        assert [one["request"] for one in (await traces.latest(10, "m"))["traces"]] == [R1]
        assert len((await traces.latest(1, None))["traces"]) == 1
        of_all = await traces.latest_of_all(1, None, "")
        assert of_all.missing == ("n2 (down)",)
        assert [(one["node"], one["request"]) for one in of_all.traces] == [("n1", R2)]
        assert await traces.find(RequestId("no request of ours"), "") is None
        assert json.loads(await traces.find(R1, "") or b"") == {"request": R1}
        assert await traces.remove(R1, "")
        assert not await traces.remove(R1, "")
        assert await traces.find(R1, "") is None
        assert (await traces.latest(10, None))["kept"] == 1
        assert len(await records.recent(RecentQuery())) == 1

    play(tmp_path, act, trace_days=1e6, request_days=1e6)


def test_traces_outlive_the_process_and_a_later_one_of_a_name_is_meant(tmp_path: Path) -> None:
    async def log(records: NodeRecords, _: TraceRecords) -> None:
        records.log_request(traced(R1, trace=b"1"))
        records.log_request(traced(R1, trace=b"2"))

    async def look(_: NodeRecords, traces: TraceRecords) -> None:
        assert await traces.find(R1, "") == b"2"
        assert await traces.remove(R1, "")
        assert (await traces.latest(10, None))["kept"] == 0

    play(tmp_path, log, trace_days=1e6)
    play(tmp_path, look, trace_days=1e6)


def test_traces_are_kept_where_no_request_is_logged(tmp_path: Path) -> None:
    async def act(records: NodeRecords, traces: TraceRecords) -> None:
        records.log_request(row("r0"))
        records.log_request(traced(R1))
        assert (await traces.latest(10, None))["kept"] == 1
        assert await records.recent(RecentQuery()) == []

    play(tmp_path, act, request_rows=0, trace_days=1e6)


def test_beyond_their_number_and_their_bytes_the_oldest_go(tmp_path: Path) -> None:
    async def few(records: NodeRecords, traces: TraceRecords) -> None:
        for number in range(30):
            records.log_request(traced(f"r{number}"))
            await traces.find(RequestId("req-n1-h0-b-0"), "")  # each is written by itself
        names = [one["request"] for one in (await traces.latest(100, None))["traces"]]
        assert names == [f"r{number}" for number in range(29, 19, -1)]

    async def small(records: NodeRecords, traces: TraceRecords) -> None:
        for number in range(30):
            records.log_request(traced(f"s{number}", trace=b"0" * 100_000))
            await traces.find(RequestId("req-n1-h0-b-0"), "")
        found = await traces.latest(100, None)
        assert found["bytes"] <= 1 << 20
        names = [one["request"] for one in found["traces"]]
        assert names == [f"s{number}" for number in range(29, 29 - len(names), -1)] and names

    play(tmp_path, few, trace_rows=10, trace_days=1e6)
    play(tmp_path, small, trace_bytes=1 << 20, trace_days=1e6)


def test_old_traces_go(tmp_path: Path) -> None:
    async def act(records: NodeRecords, traces: TraceRecords) -> None:
        records.log_request(traced("old"))
        assert (await traces.latest(10, None))["kept"] == 0

    play(tmp_path, act, trace_days=3.0)


def test_statistics_are_of_each_part() -> None:
    rows = [(2.0, json.dumps({"a": 1.0, "b": 0.5})), (4.0, '{"a": 3.0}'), (4.0, '{"a": 2.0}')]
    told = stats_told(rows)
    assert told["traces"] == 3
    assert told["seconds"] == {"count": 3, "p50": 4.0, "p95": 4.0, "share": 1.0}
    assert told["parts"]["a"] == {"count": 3, "p50": 2.0, "p95": 3.0, "share": 0.6}
    assert told["parts"]["b"] == {"count": 1, "p50": 0.5, "p95": 0.5, "share": 0.05}
    assert stats_told([]) == {"traces": 0, "seconds": None, "parts": {}}
