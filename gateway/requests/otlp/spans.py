"""A kept trace as spans of OpenTelemetry, named as its GenAI conventions have it.

Pure. The whole request is a span of kind server, with the conventions' attributes; below it are the
gateway's stages and the runner, and below that what the runner did. What the conventions do not
name begins with `shoal.`. Times are those of the gateway's wall clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from bus.wire.messages.requests import ChatPrompt, GenerationRequest, InputsPrompt
from gateway.requests.tracing import span_ids_below

Value = str | bool | int | float | tuple[str, ...]
Told = Mapping[str, Any]
_OF_SPAN = ("choice", "tokens", "steps", "longest_s", "computed_s")


class OtlpSpan(NamedTuple):
    """One span; ids in hex digits, times in nanoseconds since 1970. `error` is the code of what
    went wrong, "" for nothing; `serves`: it is a client's request."""

    name: str
    span_id: str
    parent_id: str
    began_ns: int
    ended_ns: int
    attributes: Mapping[str, Value] = MappingProxyType({})
    error: str = ""
    serves: bool = False


def asked_attributes(wire: GenerationRequest) -> dict[str, Value]:
    """Return what a request asked for: the operation and its numbers."""
    sampling = wire.sampling
    if isinstance(wire.prompt, InputsPrompt):
        return {"gen_ai.operation.name": "embeddings"}
    if wire.question is not None:
        return {"gen_ai.operation.name": "ask"}
    is_chat = isinstance(wire.prompt, ChatPrompt)
    asked: dict[str, Value] = {
        "gen_ai.operation.name": "chat" if is_chat else "text_completion",
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
    }
    if sampling.top_k:
        asked["gen_ai.request.top_k"] = sampling.top_k
    if wire.max_tokens is not None:
        asked["gen_ai.request.max_tokens"] = wire.max_tokens
    if sampling.seed is not None and sampling.seed < 2**63:
        asked["gen_ai.request.seed"] = sampling.seed
    if wire.n != 1:
        asked["gen_ai.request.choice.count"] = wire.n
    return asked


def spans_of(told: Told, asked: Mapping[str, Value]) -> Iterator[OtlpSpan]:
    """Yield the spans of a kept trace, the whole request first; `asked` is what it asked for."""
    began_s, ids = float(told["began_at_s"]), span_ids_below(told["span_id"])

    def span(name: str, parent_id: str, one: Told, attributes: Mapping[str, Value]) -> OtlpSpan:
        """Return a span below another."""
        times = (_ns(began_s + one["began_s"]), _ns(began_s + one["ended_s"]))
        return OtlpSpan(name, next(ids), parent_id, *times, attributes)

    whole = _whole(told, asked)
    yield whole
    for one in told["gateway"]:
        yield span(f"gateway.{one['name']}", whole.span_id, one, {})
    lead = told["lead"]
    if lead is None:
        return
    at = {"began_s": lead["received_s"], "ended_s": lead["told_s"]}
    runner = span("lead", whole.span_id, at, _runner(lead))
    yield runner
    for one in lead["spans"]:
        counted = {f"shoal.{name}": one[name] for name in _OF_SPAN if one[name]}
        yield span(f"lead.{one['name']}", runner.span_id, one, counted)
    for of in told.get("ranks", ()):
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


def _whole(told: Told, asked: Mapping[str, Value]) -> OtlpSpan:
    attributes: dict[str, Value] = {
        "gen_ai.provider.name": "shoal",
        "gen_ai.request.model": told["model"],
        "gen_ai.response.model": told["model"],
        "gen_ai.response.id": told["answer"],
        "gen_ai.response.finish_reasons": tuple(told["finishes"]),
        "http.response.status_code": told["status"],
        "shoal.request": told["request"],
        "shoal.dialect": told["dialect"],
        "shoal.why": told["why"],
        **asked,
        **_usage(told["usage"] or {}),
    }
    if told["streamed"] and told["first_token_s"] is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = told["first_token_s"]
    if told["error"]:
        attributes["error.type"] = told["error"]
    began_s = float(told["began_at_s"])
    return OtlpSpan(
        name=f"{asked['gen_ai.operation.name']} {told['model']}",
        span_id=told["span_id"],
        parent_id=told["parent_id"],
        began_ns=_ns(began_s),
        ended_ns=_ns(began_s + told["seconds"]),
        attributes=attributes,
        error=told["error"] or "",
        serves=True,
    )


def _usage(usage: Told) -> dict[str, Value]:
    names = (
        ("input_tokens", "prompt_tokens"),
        ("output_tokens", "completion_tokens"),
        ("cache_read.input_tokens", "cached_tokens"),
        ("reasoning.output_tokens", "reasoning_tokens"),
    )
    return {f"gen_ai.usage.{name}": usage[ours] for name, ours in names if ours in usage}


def _runner(lead: Told) -> dict[str, Value]:
    clock = lead["clock"]
    return {
        "shoal.instance": lead["instance"],
        "shoal.node": lead["node"],
        "shoal.clock.how": clock["how"],
        "shoal.clock.error_s": clock["error_s"],
    }


def _ns(seconds: float) -> int:
    return round(seconds * 1e6) * 1000
