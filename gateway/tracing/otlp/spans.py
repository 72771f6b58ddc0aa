"""Converts a stored trace to OpenTelemetry spans, named by OpenTelemetry's GenAI conventions.

Pure. The whole request is a span of kind server, with the conventions' attributes. Below it are the
gateway's stages and the runner, and below the runner its own work. Attributes that the conventions
do not define have names that begin with `shoal.`. Times are those of the gateway's wall clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from bus.wire.messages.requests import ChatPrompt, GenerationRequest, InputsPrompt
from gateway.tracing.context import span_ids_below

Value = str | bool | int | float | tuple[str, ...]
JsonObject = Mapping[str, Any]
_OF_SPAN = ("choice", "tokens", "steps", "longest_s", "computed_s")


class OtlpSpan(NamedTuple):
    """One span. Its ids are in hex digits, its times in nanoseconds since 1970. `error`: the error
    code, or "". `serves`: the span is that of a whole request."""

    name: str
    span_id: str
    parent_id: str
    began_ns: int
    ended_ns: int
    attributes: Mapping[str, Value] = MappingProxyType({})
    error: str = ""
    serves: bool = False


def asked_attributes(wire: GenerationRequest) -> dict[str, Value]:
    """Return a request's operation and numeric settings as attributes of its span."""
    sampling = wire.sampling
    if isinstance(wire.prompt, InputsPrompt):
        ranks = wire.prompt.query is not None
        return {"gen_ai.operation.name": "rerank" if ranks else "embeddings"}
    if wire.question is not None:
        return {"gen_ai.operation.name": "ask"}
    is_chat = isinstance(wire.prompt, ChatPrompt)
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": "chat" if is_chat else "text_completion",
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
    }
    if sampling.top_k:
        attributes["gen_ai.request.top_k"] = sampling.top_k
    if wire.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = wire.max_tokens
    if sampling.seed is not None and sampling.seed < 2**63:
        attributes["gen_ai.request.seed"] = sampling.seed
    if wire.n != 1:
        attributes["gen_ai.request.choice.count"] = wire.n
    return attributes


def spans_of(trace: JsonObject, request_attributes: Mapping[str, Value]) -> Iterator[OtlpSpan]:
    """Yield the spans of a stored trace. The first span is that of the whole request; only this
    span gets `request_attributes`."""
    began_s, ids = float(trace["began_at_s"]), span_ids_below(trace["span_id"])

    def span(
        name: str, parent_id: str, times: JsonObject, attributes: Mapping[str, Value]
    ) -> OtlpSpan:
        """Return a child span of the span `parent_id`."""
        began_ns, ended_ns = _ns(began_s + times["began_s"]), _ns(began_s + times["ended_s"])
        return OtlpSpan(name, next(ids), parent_id, began_ns, ended_ns, attributes)

    whole = _whole(trace, request_attributes)
    yield whole
    for stage in trace["gateway"]:
        yield span(f"gateway.{stage['name']}", whole.span_id, stage, {})
    lead = trace["lead"]
    if lead is None:
        return
    at = {"began_s": lead["received_s"], "ended_s": lead["told_s"]}
    runner = span("lead", whole.span_id, at, _runner(lead))
    yield runner
    for work in lead["spans"]:
        counted = {f"shoal.{name}": work[name] for name in _OF_SPAN if work[name]}
        yield span(f"lead.{work['name']}", runner.span_id, work, counted)
    for of in trace.get("ranks", ()):
        if not of["told"]:
            continue
        about: dict[str, Value] = {"shoal.node": str(of["node"])}
        rank = span(f"rank{of['rank']}", runner.span_id, of, about)
        yield rank
        for turn in of["turns"]:
            parts = {f"shoal.{name}_s": seconds for name, seconds in turn["seconds"].items()}
            counts = {"shoal.steps": turn["steps"], "shoal.tokens": turn["tokens"]}
            yield span(f"rank.{turn['name']}", rank.span_id, turn, counts | parts)
        for part in of["parts"]:
            yield span(f"rank.{part['name']}", rank.span_id, part, {})


def _whole(trace: JsonObject, request_attributes: Mapping[str, Value]) -> OtlpSpan:
    attributes: dict[str, Value] = {
        "gen_ai.provider.name": "shoal",
        "gen_ai.request.model": trace["model"],
        "gen_ai.response.model": trace["model"],
        "gen_ai.response.id": trace["answer"],
        "gen_ai.response.finish_reasons": tuple(trace["finishes"]),
        "http.response.status_code": trace["status"],
        "shoal.request": trace["request"],
        "shoal.dialect": trace["dialect"],
        "shoal.why": trace["why"],
        **request_attributes,
        **_usage(trace["usage"] or {}),
    }
    if trace["streamed"] and trace["first_token_s"] is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = trace["first_token_s"]
    if trace["error"]:
        attributes["error.type"] = trace["error"]
    began_s = float(trace["began_at_s"])
    return OtlpSpan(
        name=f"{request_attributes['gen_ai.operation.name']} {trace['model']}",
        span_id=trace["span_id"],
        parent_id=trace["parent_id"],
        began_ns=_ns(began_s),
        ended_ns=_ns(began_s + trace["seconds"]),
        attributes=attributes,
        error=trace["error"] or "",
        serves=True,
    )


def _usage(usage: JsonObject) -> dict[str, Value]:
    names = (
        ("input_tokens", "prompt_tokens"),
        ("output_tokens", "completion_tokens"),
        ("cache_read.input_tokens", "cached_tokens"),
        ("reasoning.output_tokens", "reasoning_tokens"),
    )
    return {f"gen_ai.usage.{name}": usage[ours] for name, ours in names if ours in usage}


def _runner(lead: JsonObject) -> dict[str, Value]:
    clock = lead["clock"]
    return {
        "shoal.instance": lead["instance"],
        "shoal.node": lead["node"],
        "shoal.clock.how": clock["how"],
        "shoal.clock.error_s": clock["error_s"],
    }


def _ns(seconds: float) -> int:
    return round(seconds * 1e6) * 1000
