"""What a provider is asked, what its refusals are to our client, and what its answers tell in
passing. None of it has a key in its words."""

from __future__ import annotations

import json

import pytest

from bus.models.tasks import Provider, ProviderKind, ProviderModel
from bus.translation import ToldInPassing
from gateway.dialects.faults import HttpFault
from gateway.fetching.providers import ProviderCall, call_of, refusal_of
from tests.harness.providers import anthropic_frames, anthropic_whole, openai_frames, openai_whole

KEY = "sk-secret-4711"


def asked(kind: ProviderKind = "openai", base: str = "https://x.org/v1") -> ProviderModel:
    return ProviderModel("cloud", "m", Provider(kind=kind, base_url=base, key_env="CLOUD_KEY"))


def call(model: ProviderModel, client: dict[str, str] | None = None) -> ProviderCall:
    made = call_of(model, b"{}", {"CLOUD_KEY": f" {KEY}\n"}, client or {})
    assert isinstance(made, ProviderCall)
    return made


def test_openais_kind_is_asked_with_a_bearer_and_anthropics_with_its_own_headers() -> None:
    made = call(asked(), {"authorization": "Bearer theirs", "x-api-key": "theirs"})
    assert made.url == "https://x.org/v1/chat/completions"
    assert made.headers["authorization"] == f"Bearer {KEY}"
    made = call(asked("anthropic"), {"anthropic-beta": "b", "x-api-key": "theirs"})
    assert made.headers["x-api-key"] == KEY and "authorization" not in made.headers
    told = made.headers["anthropic-version"], made.headers["anthropic-beta"]
    assert told == ("2023-06-01", "b")


@pytest.mark.parametrize("base", ["https://x.org", "https://x.org/v1"])
def test_anthropics_path_is_the_same_with_and_without_the_version_in_the_url(base: str) -> None:
    assert call(asked("anthropic", base)).url == "https://x.org/v1/messages"


@pytest.mark.parametrize("value", [None, "", "  ", "two\nlines", "käy"])
def test_without_a_key_that_can_be_sent_nothing_is_asked(value: str | None) -> None:
    environment = {} if value is None else {"CLOUD_KEY": value}
    made = call_of(asked(), b"{}", environment, {})
    assert isinstance(made, HttpFault)
    assert (made.status, made.code) == (502, "provider_unauthorized")
    assert "CLOUD_KEY" in made.message and (not value or value not in made.message or value == "  ")


def test_a_provider_that_asks_for_no_key_is_asked_without() -> None:
    free = ProviderModel("near", "m", Provider(kind="openai", base_url="http://127.0.0.1:1/v1"))
    made = call_of(free, b"{}", {}, {"authorization": "Bearer theirs"})
    assert isinstance(made, ProviderCall) and "authorization" not in made.headers


def test_a_call_shows_neither_key_nor_body() -> None:
    shown = repr(call(asked()))
    assert KEY not in shown and "{}" not in shown


@pytest.mark.parametrize(
    ("status", "headers", "ours", "code", "again_s"),
    [
        (401, {}, 502, "provider_unauthorized", None),
        (403, {}, 502, "provider_unauthorized", None),
        (429, {"retry-after": "17"}, 429, "provider_rate_limited", 17.0),
        (429, {"retry-after": "soon"}, 429, "provider_rate_limited", 5.0),
        (404, {}, 404, "model_not_found", None),
        (400, {}, 400, "provider_refused", None),
        (422, {}, 400, "provider_refused", None),
        (413, {}, 413, "provider_refused", None),
        (307, {}, 502, "provider_failed", None),
        (500, {}, 502, "provider_failed", 5.0),
        (529, {"retry-after": "3"}, 502, "provider_failed", 3.0),
    ],
)
def test_a_refusal_names_the_provider_and_never_the_key(
    status: int, headers: dict[str, str], ours: int, code: str, again_s: float | None
) -> None:
    body = json.dumps({"error": {"message": f"no: {KEY}\n is bad"}}).encode()
    fault = refusal_of(asked(), call(asked()), status, headers, body)
    assert (fault.status, fault.code, fault.retry_after_s) == (ours, code, again_s)
    assert "'cloud'" in fault.message and KEY not in fault.message
    if ours == 502 and "unauthorized" in code:
        assert "CLOUD_KEY" in fault.message and "key_env" in fault.message


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error": 3}', b'{"error": "why"}'])
def test_a_refusal_in_another_form_is_a_refusal(body: bytes) -> None:
    fault = refusal_of(asked(), call(asked()), 500, {}, body)
    assert fault.message.endswith("why" if b"why" in body else "500")


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_stream_is_given_on_as_it_is_and_tells_its_tokens(kind: str, size: int) -> None:
    asked_for = {"model": "m", "stream_options": {"include_usage": True}}
    frames = openai_frames(asked_for) if kind == "openai" else anthropic_frames("m")
    sent = b"".join(frames)
    told = ToldInPassing(is_stream=True)
    given = b"".join(told.passed(sent[at : at + size]) for at in range(0, len(sent), size))
    assert given + told.ended() == sent
    assert told.whole and told.usage.completion_tokens == 4
    expected = (11, 0, "stop") if kind == "openai" else (16, 5, "end_turn")
    assert (told.usage.prompt_tokens, told.usage.cached_tokens, told.finish) == expected
    assert told.spent() == told.usage.prompt_tokens + 4


def test_events_are_counted_where_a_stream_tells_no_tokens() -> None:
    told = ToldInPassing(is_stream=True)
    told.passed(b"".join(openai_frames({"model": "m"})))
    assert (told.usage.completion_tokens, told.usage.prompt_tokens) == (4, 0) and told.whole


def test_of_a_stream_that_breaks_off_only_whole_lines_are_given_on() -> None:
    told = ToldInPassing(is_stream=True)
    first, second, *_ = openai_frames({"model": "m"})
    assert told.passed(first + second[:30]) == first
    assert not told.whole and not told.in_event
    assert told.passed(second[30:-1]) == second[:-1]
    assert told.in_event, "the empty line that ends the event is not there yet"


def test_a_whole_answer_tells_its_tokens() -> None:
    told = ToldInPassing(is_stream=False)
    told.read_whole(openai_whole("m"))
    assert (told.usage.prompt_tokens, told.usage.completion_tokens, told.finish) == (11, 4, "stop")
    told = ToldInPassing(is_stream=False)
    told.read_whole(anthropic_whole("m"))
    usage = told.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (16, 5, 4)


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b'{"usage": 3}', b'{"usage": {"prompt_tokens": -4}}']
)
def test_an_answer_that_tells_nothing_is_counted_as_nothing(body: bytes) -> None:
    told = ToldInPassing(is_stream=False)
    told.read_whole(body)
    assert told.spent() == 0 and told.finish is None
