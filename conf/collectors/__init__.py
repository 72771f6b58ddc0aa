"""The table `[otlp]` of the settings: the OpenTelemetry collector to which a node sends its traces.

Pure. default.toml documents each key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

__all__ = ["OWN_FILES", "REMOVED", "OtlpSettings"]

REMOVED = {
    "log": "shoal no longer sends log lines; delete this table, and let a log shipper read the "
    "log files (docs/operations/diagnostics.md)",
}
"""Tables that the settings had in earlier versions, each with the reason of its removal and the
remedy."""

OWN_FILES = {
    "clients": "clients.toml",
    "engines": "engines.toml",
    "providers": "tasks.toml",
    "tasks": "tasks.toml",
}
"""Tables that belong in a file of their own, by name."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")


class OtlpSettings(BaseModel):
    """The settings of the collector of traces. `headers` are secret."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint: str
    headers: str = Field(repr=False)

    @property
    def named_headers(self) -> Mapping[str, str]:
        """Return `headers` (`name=value`, separated by commas) as a mapping. Values are
        percent-decoded."""
        return _headers(self.headers)

    @field_validator("endpoint")
    @classmethod
    def _is_address(cls, endpoint: str) -> str:
        wrong = (
            "use http://HOST:PORT or https://HOST:PORT, with or without a path; write keys into "
            "otlp.headers"
        )
        if endpoint and not _is_collector(endpoint):
            raise ValueError(wrong)
        return endpoint

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, headers: str) -> str:
        _headers(headers)
        return headers


def _is_collector(address: str) -> bool:
    try:
        url = urlsplit(address)
        port = url.port
    except ValueError:
        return False
    plain = address.isascii() and address.isprintable() and " " not in address
    bare = not (url.fragment or "@" in url.netloc or url.query) and port != 0
    return url.scheme in ("http", "https") and bool(url.hostname) and bare and plain


def _headers(text: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    for number, entry in enumerate(filter(str.strip, text.split(",")), 1):
        name, mark, value = entry.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if not (mark and _NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            raise ValueError(
                f"entry {number} is not name=value (a comma within a value is written %2C)"
            )
        headers[name] = value
    return headers
