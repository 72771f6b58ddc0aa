"""Where a node sends what it tells of itself: traces as they end, the table `[otlp]`, and lines of
its logs, the table `[log]`.

Pure. Meanings are in default.toml.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

__all__ = ["LogSettings", "OtlpSettings"]

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_VARIABLE = re.compile(r"(?!SHOAL_)[A-Za-z_][A-Za-z0-9_]*")


class OtlpSettings(BaseModel):
    """The settings of the collector that traces are sent to. `headers` are secret."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint: str
    headers: str = Field(repr=False)

    @property
    def named_headers(self) -> Mapping[str, str]:
        """Return the headers by name."""
        return _headers(self.headers)

    @field_validator("endpoint")
    @classmethod
    def _is_address(cls, endpoint: str) -> str:
        wrong = "http://HOST:PORT or https://HOST:PORT, a path behind it or not; keys: otlp.headers"
        if endpoint and not _is_collector(endpoint, may_ask=False):
            raise ValueError(wrong)
        return endpoint

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, headers: str) -> str:
        _headers(headers)
        return headers


class LogSettings(BaseModel):
    """The settings of the collector that lines of logs are sent to. The token itself is in the
    environment alone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ingest_url: str
    ingest_token_env: str

    def headers(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return what goes with lines besides: the token, where one is wanted."""
        name = self.ingest_token_env
        return {"authorization": f"Bearer {environment[name]}"} if name else {}

    def token_trouble(self, environment: Mapping[str, str]) -> str:
        """Return what is wrong with the token in an environment; "" for nothing."""
        name = self.ingest_token_env
        token = environment.get(name, "")
        is_sound = bool(token) and token.isascii() and token.isprintable()
        if not (self.ingest_url and name) or is_sound:
            return ""
        text = f"log.ingest_token_env names {name}, which holds no token: log lines are not sent"
        return f"{text}; `{name}=... shoal restart` gives one"

    @field_validator("ingest_url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        wrong = "http://HOST:PORT/PATH or https://HOST:PORT/PATH, without user and password (a "
        wrong += "token: log.ingest_token_env)"
        if url and not _is_collector(url, may_ask=True):
            raise ValueError(wrong)
        return url

    @field_validator("ingest_token_env")
    @classmethod
    def _is_variable(cls, name: str) -> str:
        if name and not _VARIABLE.fullmatch(name):
            raise ValueError(
                "the name of a variable of the environment that holds the token, such as "
                "INGEST_TOKEN; one that begins with SHOAL_ would be a setting"
            )
        return name


def _is_collector(address: str, *, may_ask: bool) -> bool:
    """Return whether this is the address of a collector; `may_ask`: it may have a query."""
    try:
        url = urlsplit(address)
        port = url.port
    except ValueError:
        return False
    plain = address.isascii() and address.isprintable() and " " not in address
    bare = not (url.fragment or "@" in url.netloc or (url.query and not may_ask)) and port != 0
    return url.scheme in ("http", "https") and bool(url.hostname) and bare and plain


def _headers(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, entry in enumerate(filter(str.strip, text.split(",")), 1):
        name, mark, value = entry.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if not (mark and _NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            raise ValueError(
                f"entry {number} is not name=value (a comma within a value is written %2C)"
            )
        found[name] = value
    return found
