"""What a provider is asked, and what its failures are to our client.

Pure. A key is in the headers of a call and nowhere else: the words of a failure name the variable,
never its value, and what a provider says back is told without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from bus.wire.errors import ShoalError
from bus.wire.tasks import ProviderKind, ProviderModel
from gateway.dialects.faults import HttpFault

ASKS: Mapping[str, ProviderKind] = {"openai_chat": "openai", "anthropic_messages": "anthropic"}
"""The dialects that a kind of provider speaks, whose bodies are passed on as they are."""
ANTHROPIC_VERSION = "2023-06-01"
PASSED_HEADERS = ("anthropic-version", "anthropic-beta")
"""Headers of a client of Anthropic's API that say how its body is to be understood."""
ERROR_CHARS = 500
RETRY_S = 5.0
MOST_RETRY_S = 24 * 3600.0
ProviderRule = Literal["unreachable", "broken", "late", "client_gone", "shutdown"]
_FAULTS: Mapping[ProviderRule, tuple[int, str, float | None]] = {
    "unreachable": (502, "provider_unreachable", RETRY_S),
    "broken": (502, "provider_broke_off", RETRY_S),
    "late": (504, "deadline_exceeded", RETRY_S),
    "client_gone": (499, "client_closed", None),
    "shutdown": (503, "draining", RETRY_S),
}


class ProviderFailed(ShoalError):
    """A provider that did not answer, or broke off, by one rule."""

    def __init__(self, rule: ProviderRule, message: str) -> None:
        super().__init__(message)
        self.rule: ProviderRule = rule
        self.message = message

    @property
    def fault(self) -> HttpFault:
        """Return what it is to the client."""
        status, code, again_s = _FAULTS[self.rule]
        return HttpFault(status, code, self.message, retry_after_s=again_s)


@dataclass(frozen=True, slots=True)
class ProviderCall:
    """One question. `headers` have the key, empty for none, so that they are not shown."""

    provider: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    key: str = field(repr=False)


def call_of(
    asked: ProviderModel, body: bytes, environment: Mapping[str, str], client: Mapping[str, str]
) -> ProviderCall | HttpFault:
    """Return the call with a body, or why it cannot be made: there is no key. `client` are the
    headers of the client, by names in small letters."""
    settings = asked.settings
    key = environment.get(settings.key_env, "").strip() if settings.key_env else ""
    if settings.key_env and not (key and key.isascii() and key.isprintable()):
        text = (
            f"the provider '{asked.provider}' needs a key, but the variable {settings.key_env} "
            "(key_env in tasks.toml) is not set in this gateway's environment: set it and "
            "restart the "
            "node"
        )
        return HttpFault(502, "provider_unauthorized", text)
    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    if settings.kind == "openai":
        path = "/chat/completions"
        headers |= {"authorization": f"Bearer {key}"} if key else {}
    else:
        path = "/messages" if settings.base_url.endswith("/v1") else "/v1/messages"
        told = {name: client[name] for name in PASSED_HEADERS if name in client}
        headers |= {"anthropic-version": ANTHROPIC_VERSION, **told}
        headers |= {"x-api-key": key} if key else {}
    return ProviderCall(asked.provider, f"{settings.base_url}{path}", headers, body, key)


def refusal_of(
    asked: ProviderModel, call: ProviderCall, status: int, headers: Mapping[str, str], body: bytes
) -> HttpFault:
    """Return what an answer that is none is to our client."""
    name, variable = asked.provider, asked.settings.key_env
    said = _said(body, call)
    again_s = _retry_after_s(headers.get("retry-after"))
    if status in (401, 403):
        what = (
            f"the key in {variable} (key_env in tasks.toml)" if variable else "a call without a key"
        )
        text = f"the provider '{name}' does not accept {what}{said}"
        return HttpFault(502, "provider_unauthorized", text)
    if status == 429:
        text = f"the provider '{name}' accepts no more requests now{said}"
        return HttpFault(429, "provider_rate_limited", text, retry_after_s=again_s or RETRY_S)
    if status == 404:
        text = f"the provider '{name}' has no model '{asked.model}'{said}"
        return HttpFault(404, "model_not_found", text, field="model")
    if 300 <= status < 400:
        text = (
            f"the provider '{name}' answers with a redirect, which shoal does not follow: "
            "set its real "
            "address as base_url"
        )
        return HttpFault(502, "provider_failed", text)
    if 400 <= status < 500:
        refused = 413 if status == 413 else 400
        return HttpFault(
            refused, "provider_refused", f"the provider '{name}' refuses the request{said}"
        )
    text = f"the provider '{name}' failed with status {status}{said}"
    return HttpFault(502, "provider_failed", text, retry_after_s=again_s or RETRY_S)


def failure_within(call: ProviderCall, event: Mapping[str, Any]) -> HttpFault | None:
    """Return what an event of a stream is to our client where it tells of a failure."""
    if event.get("error") is None:
        return None
    text = f"the provider '{call.provider}' failed during its answer{_told(event, call)}"
    return HttpFault(502, "provider_failed", text, retry_after_s=RETRY_S)


def _said(body: bytes, call: ProviderCall) -> str:
    """Return what the provider says of its refusal, behind a colon, without a key; empty for
    nothing that can be read."""
    try:
        return _told(json.loads(body), call)
    except (ValueError, RecursionError):
        return ""


def _told(told: Any, call: ProviderCall) -> str:
    error = cast(dict[str, Any], told).get("error") if isinstance(told, dict) else None
    message = cast(dict[str, Any], error).get("message") if isinstance(error, dict) else error
    if not isinstance(message, str):
        return ""
    if call.key:
        message = message.replace(call.key, "[removed]")
    return f": {' '.join(message.split())[:ERROR_CHARS]}" if message.strip() else ""


def _retry_after_s(text: str | None) -> float | None:
    if text is None or not text.strip().isdecimal():
        return None
    return min(float(text), MOST_RETRY_S)
