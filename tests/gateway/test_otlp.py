"""A gateway's traces at a collector: its client's trace goes on, and nothing waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.test_traces import get, raw_of
from tests.harness.collector import TestCollector, attributes_of, collecting
from tests.harness.gateway_testbed import MODEL, GatewayTestbed, eventually, gateway_testbed
from tests.harness.http_clients import body, chat, ready

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"


@contextmanager
def exporting(**options: Any) -> Iterator[tuple[GatewayTestbed, TestCollector]]:
    with collecting() as collector:
        given = {"otlp_endpoint": collector.url, "otlp_headers": {"x-key": "a-secret"}, **options}
        with gateway_testbed(processes=2, **given) as made:
            made.runner()
            eventually(lambda: ready(made), 10, "the instance is ready")
            yield made, collector


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[GatewayTestbed, TestCollector]]:
    with exporting() as found:
        yield found


def asked(made: GatewayTestbed, parent: str, **more: Any) -> httpx.Response:
    url = f"{made.url}/v1/chat/completions"
    return httpx.post(url, json=body("tokens=3", **more), headers={"traceparent": parent})


def counted(made: GatewayTestbed) -> dict[str, float]:
    """Spans by what became of them, over the HTTP processes."""
    text = httpx.get(f"{made.url}/metrics").text
    return {
        sample.labels["outcome"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "shoal_otlp_spans_total"
    }


def test_a_client_s_trace_goes_on_here(pair: tuple[GatewayTestbed, TestCollector]) -> None:
    made, collector = pair
    answer = asked(made, SAMPLED)
    assert answer.status_code == 200, answer.text
    version, trace_id, span_id, flags = answer.headers["traceresponse"].split("-")
    assert (version, trace_id, flags) == ("00", TRACE, "01")
    raw = raw_of(made, answer.json()["id"])
    assert (raw["trace_id"], raw["span_id"], raw["parent_id"], raw["why"]) == (
        TRACE, span_id, SPAN, "parent",
    )  # fmt: skip
    events = get(made, f"/v1/traces/{raw['request']}").json()
    assert events["otherData"]["trace_id"] == TRACE
    spans = eventually(lambda: collector.of_trace(TRACE), 10, "its spans are at the collector")
    by_id = {one.span_id.hex(): one for one in spans}
    whole = by_id[span_id]
    assert (whole.name, whole.parent_span_id.hex()) == (f"chat {MODEL}", SPAN)
    told = attributes_of(whole.attributes)
    assert told["gen_ai.usage.output_tokens"] == 3 and told["gen_ai.response.id"].endswith(
        raw["request"]
    )
    assert {one.name for one in spans} >= {"gateway.answer", "lead", "lead.decode"}
    for one in spans:
        assert one is whole or one.parent_span_id.hex() in by_id
    resource = attributes_of(collector.taken[0].body.resource_spans[0].resource.attributes)
    assert (resource["service.name"], resource["service.instance.id"]) == ("shoal", "n1")
    assert collector.taken[0].headers["x-key"] == "a-secret"


def test_a_client_that_does_not_record_its_trace_has_none_here(
    pair: tuple[GatewayTestbed, TestCollector],
) -> None:
    made, _ = pair
    answer = asked(made, NOT_SAMPLED)
    assert "traceresponse" not in answer.headers
    assert "traceresponse" not in asked(made, "nonsense").headers
    wanted = asked(made, NOT_SAMPLED, x_trace=True)
    assert wanted.headers["traceresponse"].startswith(f"00-{TRACE}-")
    assert raw_of(made, wanted.json()["id"])["why"] == "asked"
    assert get(made, f"/v1/traces/{answer.json()['id']}").status_code == 404


def test_requests_of_one_body_share_a_trace_of_their_own(
    pair: tuple[GatewayTestbed, TestCollector],
) -> None:
    made, collector = pair
    sent = {"model": MODEL, "prompt": ["tokens=1", "tokens=2"], "x_trace": True}
    answer = httpx.post(f"{made.url}/v1/completions", json=sent)
    assert answer.status_code == 200, answer.text
    trace_id = answer.headers["traceresponse"].split("-")[1]

    def wholes() -> bool:
        spans = collector.of_trace(trace_id)
        return [one.name for one in spans if one.kind == one.SPAN_KIND_SERVER] == [
            f"text_completion {MODEL}"
        ] * 2

    eventually(wholes, 10, "both requests are in one trace")


def test_spans_that_were_sent_are_counted(pair: tuple[GatewayTestbed, TestCollector]) -> None:
    made, collector = pair
    raw_of(made, asked(made, SAMPLED).json()["id"])
    eventually(
        lambda: counted(made) == {"sent": len(collector.spans)} and collector.spans,
        10,
        "each span is counted as sent",
    )


def test_where_nothing_is_kept_traces_are_exported_all_the_same() -> None:
    with exporting(trace_rows=0) as (made, collector):
        answer = chat(made, "tokens=2", x_trace=True)
        assert "x-shoal-ignored" not in answer.headers
        trace_id = answer.headers["traceresponse"].split("-")[1]
        eventually(lambda: collector.of_trace(trace_id), 10, "it is at the collector")
        assert get(made, "/v1/traces").json()["traces"] == []
        assert get(made, "/v1/tracing").json()["keeps"] is False


def test_a_gateway_that_ends_sends_what_waits() -> None:
    with exporting() as (made, collector):
        answer = chat(made, "tokens=2", x_trace=True)
        made.gateway.terminate()
        made.gateway.wait(20)
        assert collector.of_trace(answer.headers["traceresponse"].split("-")[1])


def test_a_silent_collector_holds_no_request_up() -> None:
    with exporting() as (made, collector):
        collector.holds.clear()
        answers = [chat(made, "tokens=2", x_trace=True) for _ in range(20)]
        assert [one.status_code for one in answers] == [200] * 20
        assert collector.taken == [] and counted(made) == {}
        collector.holds.set()
        for answer in answers:
            trace_id = answer.headers["traceresponse"].split("-")[1]
            eventually(lambda trace_id=trace_id: collector.of_trace(trace_id), 20, "it is there")
        assert "a-secret" not in Path(made.folder, "gateway.log").read_text()


def test_without_the_extra_that_is_said_and_the_gateway_serves(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from bus.process.logs import Log\n"
        "from bus.wire.ids import NodeId\n"
        "from bus.process.endpoints import Endpoints\n"
        "from gateway.view.options import Options\n"
        "from gateway.tracing.otlp import open_exporter\n"
        "options = Options(node=NodeId('n1'), node_name='n', endpoints=Endpoints(sys.argv[1]),"
        " metrics_folder='', otlp_endpoint='http://127.0.0.1:9')\n"
        "assert open_exporter(options, Log(node='n1', process='t'), print) is None\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "install opentelemetry-proto`" in done.stderr and '"level": "error"' in done.stderr
