"""The tables of the settings (`[runner]`, `[cluster]` and others).

Pure. default.toml documents each key."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from bus.process.endpoints import is_loopback
from bus.wire.kv import KvKind, not_a_kind
from conf.collectors import OtlpSettings


def words(value: Any) -> Any:
    """Return the words in comma-separated text or a JSON array; return other values unchanged."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            raise ValueError("must be words separated by commas, or a JSON array") from None
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    return value


Words = Annotated[tuple[str, ...], BeforeValidator(words)]
"""A list of words: an array in TOML; comma-separated or a JSON array in the environment."""
MOST_THREADS = 256

_ALLOWED_NAME = re.compile(r"\*|(\*\.)?[\w-]+(\.[\w-]+)*")


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _networks(networks: tuple[str, ...]) -> tuple[str, ...]:
    for network in (network for network in networks if not _is_network(network)):
        raise ValueError(f"{network!r} is not an IP address or a network such as 10.0.0.0/8")
    return networks


Networks = Annotated[Words, AfterValidator(_networks)]
"""A list of IP addresses and networks."""


def _whole(path: str) -> str:
    if path and not path.startswith(("/", "~/")):
        raise ValueError("must be an absolute path, beginning with / or ~/")
    return path


WholePath = Annotated[str, AfterValidator(_whole)]
"""The path of a file, beginning with / or ~/; "" stands for no file."""

LEAST_WEIGHTS_BYTES_PER_S = 1_000_000


def _brisk(bytes_per_s: int) -> int:
    if 0 < bytes_per_s < LEAST_WEIGHTS_BYTES_PER_S:
        raise ValueError("must be 0 (no limit) or at least 1000000: a piece (1 MiB) has 15 s")
    return bytes_per_s


Brisk = Annotated[int, Field(ge=0), AfterValidator(_brisk)]
"""A rate in bytes per second: at least 1000000, or 0 for no limit."""

_PULL_NAME = re.compile(r"([a-z0-9][a-z0-9._:-]*)=([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)")


def _pull_names(entries: tuple[str, ...]) -> tuple[str, ...]:
    for entry in entries:
        if not _PULL_NAME.fullmatch(entry):
            raise ValueError(f"{entry!r} is not name=OWNER/REPOSITORY, such as qwen3:4b=me/mine")
    return entries


PullNames = Annotated[Words, AfterValidator(_pull_names)]
"""A list of `name=OWNER/REPOSITORY`: users' names of models, each with its repository."""

_PULL_PATTERN = re.compile(r"[\w*?.\[\]-]+/[\w*?.\[\]-]+")


def _pull_patterns(entries: tuple[str, ...]) -> tuple[str, ...]:
    for entry in entries:
        if not _PULL_PATTERN.fullmatch(entry):
            raise ValueError(f"{entry!r} is not OWNER/NAME with * and ?, such as mlx-community/*")
    return entries


PullPatterns = Annotated[Words, AfterValidator(_pull_patterns)]
"""A list of patterns of repositories on the hub, such as `mlx-community/*`."""

ONE_OF_TWO = (
    "only http_tls_{set} is set: set both http_tls_cert and http_tls_key to the "
    "files of a certificate and its key, or neither for plain HTTP"
)


class RunnerSettings(BaseModel):
    """The settings of every runner."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_rows: int = Field(ge=1, le=1024)
    max_waiting: int = Field(ge=0, le=10_000)
    prefill_share: float = Field(gt=0.0, lt=1.0)
    prefix_cache_bytes: int = Field(ge=0)
    default_max_tokens: int = Field(ge=1)
    constrain_tools: bool
    drop_idle_s: float = Field(gt=0.0)
    load_deadline_s: float = Field(gt=0.0)
    group_connect_s: float = Field(ge=5.0, le=50.0)
    blas: str
    blas_threads: int | Literal["auto"]
    parity: Literal["exact", "fast"]
    spare: bool
    kv: KvKind
    kv_disk_bytes: int = Field(ge=0)
    kv_disk_min_tokens: int = Field(ge=128, le=1_000_000)
    kv_disk_hours: float = Field(gt=0.0, le=8760.0)
    kv_moves: bool
    metal_fast_synch: Literal["card", "on", "off"]
    speculate: Literal["auto", "off", "ngram", "grammar", "draft_model", "mtp", "block"]
    llama_server: WholePath

    @field_validator("kv", mode="before")
    @classmethod
    def _is_a_kind(cls, kind: Any) -> Any:
        if (wrong := not_a_kind(kind)) is None:
            return kind
        raise ValueError(wrong)

    @field_validator("blas")
    @classmethod
    def _preloadable(cls, blas: str) -> str:
        if blas in ("auto", "off") or (blas.startswith("/") and not set(blas) & set(" :")):
            return blas
        raise ValueError("must be `auto`, `off` or an absolute path without blanks and colons")

    @field_validator("blas_threads", mode="before")
    @classmethod
    def _counted(cls, threads: Any) -> Any:
        if threads == "auto" or (str(threads).isdecimal() and 1 <= int(threads) <= MOST_THREADS):
            return threads
        raise ValueError(f"must be `auto` or a number from 1 to {MOST_THREADS}")


class RecordsSettings(BaseModel):
    """The settings of the gateway's records on disk."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    request_rows: int = Field(ge=0, le=1_000_000)
    request_bytes: int = Field(ge=1 << 20, le=1 << 30)
    request_days: float = Field(gt=0.0, le=3650.0)
    trace_sample: float = Field(ge=0.0, le=1.0)
    trace_rows: int = Field(ge=0, le=100_000)
    trace_bytes: int = Field(ge=1 << 20, le=1 << 30)
    trace_days: float = Field(gt=0.0, le=365.0)
    answer_rows: int = Field(ge=0, le=1_000_000)
    answer_bytes: int = Field(ge=1 << 24, le=1 << 36)
    answer_days: float = Field(gt=0.0, le=3650.0)


def _allowances(entries: tuple[str, ...]) -> tuple[str, ...]:
    for entry in entries:
        host, mark, port = entry.rpartition(":")
        if not mark or not port.isdecimal() or (":" in host and not host.startswith("[")):
            host, port = entry, "1"
        if not (_ALLOWED_NAME.fullmatch(host) or _is_network(host.strip("[]"))) or not (
            0 < int(port) < 65536
        ):
            raise ValueError(
                f"{entry!r} is not a host (example.org, *.example.org, *), an address or a "
                "network such as 10.0.0.0/8, with or without a port"
            )
    return entries


class FetchSettings(BaseModel):
    """The settings for fetching the URLs that clients name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool
    allow: Annotated[Words, AfterValidator(_allowances)]
    largest_bytes: int = Field(ge=1024, le=64 << 20)
    whole_s: float = Field(gt=0.0, le=120.0)
    redirects: int = Field(ge=0, le=20)
    types: Words


class ToolsSettings(BaseModel):
    """The settings of the tools that this node runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    search: Literal["", "searxng"]
    search_url: str

    @model_validator(mode="after")
    def _placed(self) -> ToolsSettings:
        if self.search and not self.search_url.startswith(("http://", "https://")):
            raise ValueError(f"tools.search = {self.search!r} needs tools.search_url (http://...)")
        return self


class JobsSettings(BaseModel):
    """The settings of background requests, which run without a connected client."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    running: int = Field(ge=0, le=1024)
    per_client: int = Field(ge=0, le=100_000)
    rows: int = Field(ge=0, le=1_000_000)
    bytes: int = Field(ge=1 << 20, le=1 << 40)
    ttl_s: float = Field(ge=1.0, le=365 * 86_400.0)


class PoolTable(BaseModel):
    """The settings that decide which models are in memory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    turn_s: float = Field(ge=0.0, le=3600.0)
    turn_loads: float = Field(ge=0.0, le=100.0)
    ageing_per_s: float = Field(ge=0.0, le=100.0)
    replicas: int = Field(ge=0, le=15)
    replica_rows: int = Field(ge=1, le=10_000)
    replica_after_s: float = Field(ge=1.0, le=86_400.0)
    replica_gone_s: float = Field(ge=1.0, le=86_400.0)


class KeepAliveSettings(BaseModel):
    """How long idle models stay loaded, where `keep_alive_s` does not apply."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    embedding_s: float
    client_text_s: float
    client_embedding_s: float


class ClusterSettings(BaseModel):
    """The settings of the connections to other nodes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: str = Field(min_length=1, max_length=64)
    peers: Words
    listen: str
    addresses: Words
    discovery: bool | Literal["auto"]
    measure_links: bool

    def discovers(self, *, has_key: bool) -> bool:
        """Return whether to announce this node and to find others by mDNS. `auto`: only if the node
        has a cluster key and other machines can reach it."""
        if self.discovery == "auto":
            return has_key and bool(self.listen) and not is_loopback(self.listen)
        return self.discovery

    @field_validator("peers")
    @classmethod
    def _dialled(cls, peers: tuple[str, ...]) -> tuple[str, ...]:
        for peer in peers:
            host, _, port = peer.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ValueError(
                    f"{peer!r} is not host:port (the port of `peers`, 24154 by default)"
                )
        return peers


TABLES: Mapping[str, type[BaseModel]] = {
    "runner": RunnerSettings,
    "cluster": ClusterSettings,
    "records": RecordsSettings,
    "fetch": FetchSettings,
    "tools": ToolsSettings,
    "jobs": JobsSettings,
    "pool": PoolTable,
    "keep_alive": KeepAliveSettings,
    "otlp": OtlpSettings,
}
"""The tables of a settings file, each with the type that checks it."""


def hash_key(key: str) -> str:
    """Return the stored form of an API key: `sha256:<hex>`."""
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def is_hash(key: str) -> bool:
    """Return whether an API key is a hash, as stored in the settings."""
    return re.fullmatch(r"sha256:[0-9a-f]{64}", key) is not None


def masked(key: str, value: Any) -> Any:
    """Return a setting's value for display: without keys, and URLs without password and query."""
    if key == "api_keys" and value:
        return f"({len(value)} hashed)"
    if key == "otlp.headers" and value:
        return "(set)"
    if key.endswith(("_url", "endpoint")) and value:
        return re.sub(
            r"//[^/@]*@|\?.*$", lambda match: "//" if match[0][0] == "/" else "", str(value)
        )
    return value
