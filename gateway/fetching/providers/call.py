"""The call to a provider, and the client's errors for a provider's failures.

Pure. A provider's key appears only in the headers of a call. Messages name the environment variable
that holds the key, never the key. The key is also removed from the provider's own texts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bus.models.tasks import ProviderKind, ProviderModel
from bus.translation import error_message
from bus.wire.errors import ShoalError
from gateway.dialects.faults import HttpFault

_PATHS: Mapping[str, tuple[ProviderKind, str]] = {
    "openai_chat": ("openai", "/chat/completions"),
    "openai_completions": ("openai", "/completions"),
    "openai_embeddings": ("openai", "/embeddings"),
    "anthropic_messages": ("anthropic", "/messages"),
    "anthropic_count_tokens": ("anthropic", "/messages/count_tokens"),
}
_TRANSLATED: Mapping[ProviderKind, str] = {
    "openai": "openai_chat",
    "anthropic": "anthropic_messages",
}
"""The dialect into which bodies in other dialects are translated."""
ANTHROPIC_VERSION = "2023-06-01"
PASSED_HEADERS = ("anthropic-version", "anthropic-beta")
"""Headers that clients of Anthropic's API send and shoal forwards to the provider, because they say
how to read the body."""
ERROR_CHARS = 500
RETRY_S = 5.0
MOST_RETRY_S = 24 * 3600.0
ProviderRule = Literal["unreachable", "broken", "late", "client_gone", "cancelled", "shutdown"]
_FAULTS: Mapping[ProviderRule, tuple[int, str, float | None]] = {
    "unreachable": (502, "provider_unreachable", RETRY_S),
    "broken": (502, "provider_broke_off", RETRY_S),
    "late": (504, "deadline_exceeded", RETRY_S),
    "client_gone": (499, "client_closed", None),
    "cancelled": (409, "cancelled", None),
    "shutdown": (503, "draining", RETRY_S),
}


class ProviderFailed(ShoalError):
    """A provider did not answer, or its answer broke off. `rule` says why."""

    def __init__(self, rule: ProviderRule, message: str) -> None:
        super().__init__(message)
        self.rule: ProviderRule = rule
        self.message = message

    @property
    def fault(self) -> HttpFault:
        """Return the HTTP error for the client."""
        status, code, again_s = _FAULTS[self.rule]
        return HttpFault(status, code, self.message, retry_after_s=again_s)


CANCELLED = ProviderFailed("cancelled", "the request was cancelled")


@dataclass(frozen=True, slots=True)
class ProviderCall:
    """One call of a provider. `headers` contain `key`, so the `repr` shows neither of the two.
    `key` is empty if the provider needs none."""

    provider: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    key: str = field(repr=False)


def speaks(target: ProviderModel, dialect: str) -> bool:
    """Return whether a provider's API has the client's dialect. Such a body is forwarded; any other
    must be translated."""
    return _PATHS.get(dialect, ("", ""))[0] == target.settings.kind


def call_of(
    target: ProviderModel,
    body: bytes,
    environment: Mapping[str, str],
    client: Mapping[str, str],
    dialect: str = "",
) -> ProviderCall | HttpFault:
    """Return the call that sends a body to a provider. If the provider's key is not set in
    `environment`, return an error. `client` has the client's headers, with names in lower case.
    `dialect`: the client's dialect if the body is forwarded unchanged; empty if the body was
    translated. It selects the path of the URL."""
    settings = target.settings
    key = environment.get(settings.key_env, "").strip() if settings.key_env else ""
    if settings.key_env and not (key and key.isascii() and key.isprintable()):
        text = (
            f"the provider '{target.provider}' needs a key, but the variable {settings.key_env} "
            "(key_env in tasks.toml) is not set in this gateway's environment: set it and "
            "restart the node"
        )
        return HttpFault(502, "provider_unauthorized", text)
    headers = {"content-type": "application/json", "accept-encoding": "identity"}
    path = _PATHS[dialect if speaks(target, dialect) else _TRANSLATED[settings.kind]][1]
    if settings.kind == "openai":
        headers |= {"authorization": f"Bearer {key}"} if key else {}
    else:
        path = path if settings.base_url.endswith("/v1") else f"/v1{path}"
        passed = {name: client[name] for name in PASSED_HEADERS if name in client}
        headers |= {"anthropic-version": ANTHROPIC_VERSION, **passed}
        headers |= {"x-api-key": key} if key else {}
    return ProviderCall(target.provider, f"{settings.base_url}{path}", headers, body, key)


def refusal_of(
    target: ProviderModel, call: ProviderCall, status: int, headers: Mapping[str, str], body: bytes
) -> HttpFault:
    """Return the client's error for a provider's error response."""
    name, variable = target.provider, target.settings.key_env
    detail = _detail_of(body, call)
    again_s = _retry_after_s(headers.get("retry-after"))
    if status in (401, 403):
        what = (
            f"the key in {variable} (key_env in tasks.toml)" if variable else "a call without a key"
        )
        text = f"the provider '{name}' does not accept {what}{detail}"
        return HttpFault(502, "provider_unauthorized", text)
    if status == 429:
        text = f"the provider '{name}' accepts no more requests now{detail}"
        return HttpFault(429, "provider_rate_limited", text, retry_after_s=again_s or RETRY_S)
    if status == 404:
        text = f"the provider '{name}' has no model '{target.model}'{detail}"
        return HttpFault(404, "model_not_found", text, field="model")
    if 300 <= status < 400:
        text = (
            f"the provider '{name}' answers with a redirect, which shoal does not follow: "
            "set its real address as base_url"
        )
        return HttpFault(502, "provider_failed", text)
    if 400 <= status < 500:
        refused = 413 if status == 413 else 400
        return HttpFault(
            refused, "provider_refused", f"the provider '{name}' refuses the request{detail}"
        )
    text = f"the provider '{name}' failed with status {status}{detail}"
    return HttpFault(502, "provider_failed", text, retry_after_s=again_s or RETRY_S)


def failure_within(call: ProviderCall, event: Mapping[str, Any]) -> HttpFault | None:
    """Return the client's error for a stream's event; None if the event reports no failure."""
    if event.get("error") is None:
        return None
    text = f"the provider '{call.provider}' failed during its answer{_error_text(event, call)}"
    return HttpFault(502, "provider_failed", text, retry_after_s=RETRY_S)


def _detail_of(body: bytes, call: ProviderCall) -> str:
    """Return the provider's own message, without the key and with a colon before it; empty if there
    is no message."""
    try:
        return _error_text(json.loads(body), call)
    except (ValueError, RecursionError):
        return ""


def _error_text(body: object, call: ProviderCall) -> str:
    message = error_message(body)
    if message is None:
        return ""
    if call.key:
        message = message.replace(call.key, "[removed]")
    return f": {' '.join(message.split())[:ERROR_CHARS]}" if message.strip() else ""


def _retry_after_s(text: str | None) -> float | None:
    if text is None or not text.strip().isdecimal():
        return None
    return min(float(text), MOST_RETRY_S)
