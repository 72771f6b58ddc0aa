"""A trace as spans of OpenTelemetry, and the trace that a request is a part of."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    InputsPrompt,
    Sampling,
    TextPrompt,
)
from gateway.tracing import TraceParent, parent_of, place_of
from gateway.tracing.otlp.encoding import SpanEncoder
from gateway.tracing.otlp.spans import OtlpSpan, asked_attributes, spans_of
from tests.harness.collector import attributes_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
MODEL = ModelId("shoal-tiny")


def told(**more: Any) -> dict[str, Any]:
    lead: dict[str, Any] = {
        "instance": "inst-1", "node": "n2", "received_s": 0.2, "told_s": 1.9, "choices": 1,
        "clock": {"how": "measured", "offset_s": 5.0, "error_s": 0.001},
        "spans": [
            {
                "name": "decode", "choice": 0, "began_s": 0.3, "ended_s": 1.9, "tokens": 7,
                "steps": 7, "longest_s": 0.3, "computed_s": 1.0,
            }
        ],
    }  # fmt: skip
    return {
        "request": "req-n1-h0-b-1", "trace_id": TRACE, "span_id": "a" * 16, "parent_id": SPAN,
        "began_at_s": 1_700_000_000.25, "seconds": 2.0, "node": "n1", "model": MODEL,
        "kind": "generate", "dialect": "openai_chat", "streamed": True, "why": "parent",
        "status": 200, "error": None, "answer": "chatcmpl-req-n1-h0-b-1", "finishes": ["stop"],
        "first_token_s": 0.5,
        "usage": {
            "prompt_tokens": 40, "completion_tokens": 7, "cached_tokens": 8, "reasoning_tokens": 0
        },
        "gateway": [{"name": "read", "began_s": 0.0, "ended_s": 0.1}],
        "lead": lead, "sums": {}, **more,
    }  # fmt: skip


def wire(**more: Any) -> GenerationRequest:
    prompt = ChatPrompt(messages=(ChatMessage(role="user", name="secret"),))
    made: dict[str, Any] = {"request_id": RequestId("req-n1-h0-b-1"), "model": MODEL}
    return GenerationRequest(**{**made, "prompt": prompt, **more})


def encoded(*spans: OtlpSpan) -> list[Span]:
    encoder = SpanEncoder({"service.name": "shoal"})
    assert encoder.add(TRACE, spans) == len(spans)
    request = ExportTraceServiceRequest.FromString(encoder.body())
    (of,) = request.resource_spans
    assert attributes_of(of.resource.attributes) == {"service.name": "shoal"}
    return list(of.scope_spans[0].spans)


def test_a_trace_s_spans_nest_and_have_its_times() -> None:
    whole, read, lead, decode = spans_of(told(), asked_attributes(wire()))
    assert [one.name for one in (whole, read, lead, decode)] == [
        "chat shoal-tiny", "gateway.read", "lead", "lead.decode",
    ]  # fmt: skip
    assert (whole.parent_id, whole.span_id) == (SPAN, "a" * 16)
    assert read.parent_id == lead.parent_id == whole.span_id and decode.parent_id == lead.span_id
    assert len({one.span_id for one in (whole, read, lead, decode)}) == 4
    began_ns = 1_700_000_000_250_000_000
    assert (whole.began_ns, whole.ended_ns) == (began_ns, began_ns + 2 * 10**9)
    assert (decode.began_ns, decode.ended_ns) == (began_ns + 3 * 10**8, began_ns + 19 * 10**8)
    assert decode.attributes == {
        "shoal.tokens": 7, "shoal.steps": 7, "shoal.longest_s": 0.3, "shoal.computed_s": 1.0,
    }  # fmt: skip
    assert lead.attributes["shoal.node"] == "n2"


def test_the_whole_request_has_the_names_of_the_genai_conventions() -> None:
    asked = asked_attributes(wire(max_tokens=7, n=2, sampling=Sampling(top_k=40, seed=3)))
    whole = next(spans_of(told(), asked))
    assert whole.attributes.items() >= {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "shoal",
        "gen_ai.request.model": MODEL, "gen_ai.response.model": MODEL,
        "gen_ai.response.id": "chatcmpl-req-n1-h0-b-1",
        "gen_ai.response.finish_reasons": ("stop",), "gen_ai.request.max_tokens": 7,
        "gen_ai.request.choice.count": 2, "gen_ai.request.top_k": 40, "gen_ai.request.seed": 3,
        "gen_ai.request.temperature": 1.0, "gen_ai.usage.input_tokens": 40,
        "gen_ai.usage.output_tokens": 7, "gen_ai.usage.cache_read.input_tokens": 8,
        "gen_ai.response.time_to_first_chunk": 0.5, "http.response.status_code": 200,
    }.items()  # fmt: skip
    assert "error.type" not in whole.attributes
    assert "secret" not in repr(whole)


def test_operations_have_their_names() -> None:
    def named(**more: Any) -> Any:
        return asked_attributes(wire(**more))["gen_ai.operation.name"]

    assert named(prompt=TextPrompt(text="x")) == "text_completion"
    assert named(prompt=InputsPrompt(inputs=("x",))) == "embeddings"


def test_a_request_that_failed_is_an_error_and_one_without_a_runner_has_no_lead() -> None:
    failed = told(status=503, error="runner_lost", usage=None, lead=None, first_token_s=None)
    whole, read = encoded(*spans_of(failed, asked_attributes(wire())))
    assert whole.status.code == Status.STATUS_CODE_ERROR
    assert attributes_of(whole.attributes)["error.type"] == "runner_lost"
    assert whole.kind == Span.SPAN_KIND_SERVER and read.kind == Span.SPAN_KIND_INTERNAL


def test_what_is_encoded_is_what_was_there() -> None:
    spans = list(spans_of(told(), asked_attributes(wire())))
    for span, made in zip(spans, encoded(*spans), strict=True):
        assert (made.trace_id.hex(), made.span_id.hex()) == (TRACE, span.span_id)
        assert (made.parent_span_id.hex(), made.name) == (span.parent_id, span.name)
        assert (made.start_time_unix_nano, made.end_time_unix_nano) == (
            span.began_ns, span.ended_ns,
        )  # fmt: skip
        plain = {key: list(v) if isinstance(v, tuple) else v for key, v in span.attributes.items()}
        assert attributes_of(made.attributes) == plain


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),
    ],
)
def test_a_client_s_trace_is_read(header: str, sampled: bool) -> None:
    assert parent_of(header) == TraceParent(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "header",
    [
        None, "", f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-1", f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01\n", f"00-{TRACE}-{SPAN}-0g",
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01.x",
    ],
)  # fmt: skip
def test_what_is_no_trace_of_a_client_s_is_not_read(header: str | None) -> None:
    assert parent_of(header) is None


@given(st.text())
def test_no_header_is_too_odd(header: str) -> None:
    found = parent_of(header)
    assert found is None or len(found.trace_id) == 32


def test_requests_of_one_answer_are_in_one_trace() -> None:
    first, second = (place_of(name, "req-1", None) for name in ("req-1", "req-2"))
    assert first.trace_id == second.trace_id and first.span_id != second.span_id
    assert place_of("req-9", "req-9", None).trace_id != first.trace_id
    below = place_of("req-1", "req-1", TraceParent(TRACE, SPAN, True))
    assert (below.trace_id, below.parent_id) == (TRACE, SPAN)
    assert below.header == f"00-{TRACE}-{below.span_id}-01"
    assert parent_of(below.header) == TraceParent(TRACE, below.span_id, True)
