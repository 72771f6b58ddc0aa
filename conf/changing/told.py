"""Talks to the disk: describes each setting of a node, its value, source and running value, for
the HTTP API."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from conf.changing.described import descriptions
from conf.changing.file import change, defaults
from conf.sections import TABLES, masked
from conf.settings import DEFAULTS_FILE, Settings, load_settings

HOT = frozenset({"log_level"})
"""Settings whose change takes effect without a restart, because running processes read them
again."""
HERE_ALONE: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "api",
            "http_host",
            "http_owner_only",
            "http_anyone_pulls",
            "http_names",
            "cors_origins",
            "trusted_proxies",
            "api_keys",
        ),
        "this setting controls who may use the HTTP API",
    ),
    **dict.fromkeys(
        ("cluster.listen", "cluster.addresses", "cluster.peers", "cluster.namespace", "voters"),
        "this setting controls which nodes may connect to this one",
    ),
    **dict.fromkeys(
        ("http_tls_cert", "http_tls_key", "cluster_key_file", "model_folders", "runner.blas"),
        "this setting names files on this machine",
    ),
    **dict.fromkeys(
        (
            "offline",
            "fetch.enabled",
            "fetch.allow",
            "tools.search",
            "tools.search_url",
            "otlp.endpoint",
            "otlp.headers",
        ),
        "this setting controls which other services this node calls",
    ),
    **dict.fromkeys(
        ("pull_on_demand", "pull_names"),
        "this setting controls which models are downloaded without a request",
    ),
}
"""Settings that cannot be changed over the HTTP API, each with the reason. With them, a client that
may only use the API could give itself more rights."""


@dataclass(frozen=True, slots=True)
class SettingsTold:
    """The settings of a node for the HTTP API; `running` are the values that its processes use."""

    running: Settings

    def rows(self) -> dict[str, Any]:
        """Return every setting (without the values of secrets) and what is wrong with the file.
        Waits for the disk. Raises ConfigError if a node could not start with the current
        settings."""
        paths = self.running.paths
        now = load_settings(home=paths.home if paths.chosen else None, flags=self.running.flags)
        ran = {key: value for key, value, _ in self.running.rows()}
        meanings, standard = descriptions(DEFAULTS_FILE.read_text()), defaults()
        rows: list[dict[str, Any]] = []
        for key, value, source in now.rows():
            is_hot = key in HOT
            runs = value if is_hot else ran[key]
            rows.append(
                {
                    "key": key,
                    "meaning": meanings.get(key, ""),
                    **_kind(key, standard[key]),
                    "default": standard[key],
                    "value": masked(key, value),
                    "source": source,
                    "running": masked(key, runs),
                    "differs": value != runs,
                    "takes": "at once" if is_hot else "restart",
                    "not_over_http": self.why_not_over_http(key),
                }
            )
        return {"file": str(paths.config_file), "trouble": now.trouble, "settings": rows}

    def change(self, put: Mapping[str, Any], drop: Sequence[str]) -> None:
        """Set the settings of `put` and unset those of `drop` in `shoal.toml`. Waits for the disk.
        Raises ConfigError."""
        change(self.running.paths, put, drop)

    def why_not_over_http(self, key: str) -> str:
        """Return why the HTTP API refuses to change a setting; "" if it may change it."""
        return HERE_ALONE.get(key, "")


def _kind(key: str, default: Any) -> dict[str, Any]:
    table, _, name = key.rpartition(".")
    fields = TABLES.get(table, Settings).model_fields
    choices = _choices(fields[name].annotation)
    if choices:
        return {"kind": "choice", "choices": choices}
    kinds = ((bool, "truth"), (int, "whole"), (float, "number"), (list, "words"))
    kind = next((word for kind, word in kinds if isinstance(default, kind)), "text")
    return {"kind": kind, "choices": []}


def _choices(annotation: Any) -> list[str]:
    """Return the words that a setting accepts, if its type is a list of words; empty for other
    settings."""
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return [str(word) for word in typing.get_args(annotation)]
    if origin in (types.UnionType, typing.Union):
        parts = typing.get_args(annotation)
        words = [_choices(part) if part is not bool else ["true", "false"] for part in parts]
        return [word for part in words for word in part] if all(words) else []
    return []
