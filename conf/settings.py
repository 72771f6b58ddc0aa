"""Talks to the disk and the environment: merges the layers of the settings.

Later layers override earlier ones. First comes `conf/default.toml`, which documents every key, then
`<config>/shoal.toml`. The flags of `shoal up` follow, so that later commands agree with the running
node. Then come `SHOAL_*` variables (`SHOAL_RUNNER__MAX_ROWS` sets a key of a table), and flags. An
unknown key is refused, and the error suggests a similar key. Only composition roots call
`load_settings`. If `shoal.toml` cannot be read, a running node keeps the settings that it started
with.
"""

from __future__ import annotations

import json
import os
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo
from pydantic.functional_validators import field_validator, model_validator

from bus.links.cluster_key import KeyFiles
from bus.links.tls_files import TlsFiles
from bus.process.endpoints import WILDCARDS, Endpoints, host_here
from bus.process.identity import node_id
from bus.process.interfaces import reachable_hosts
from bus.process.logs import LevelSource
from bus.wire.errors import ConfigError, problem_text
from bus.wire.ids import NodeId
from conf import keys
from conf.collectors import OtlpSettings
from conf.paths import Paths, find_paths
from conf.ports import BasePort, port_of
from conf.sections import (
    ONE_OF_TWO,
    TABLES,
    Brisk,
    ClusterSettings,
    FetchSettings,
    JobsSettings,
    KeepAliveSettings,
    Networks,
    PoolTable,
    PullNames,
    PullPatterns,
    RecordsSettings,
    RunnerSettings,
    ToolsSettings,
    WholePath,
    Words,
    hash_key,
    is_hash,
    masked,
    words,
)

DEFAULTS_FILE = Path(__file__).parent / "default.toml"
LAUNCHED_BY = "SHOAL_LAUNCHED_BY"
API_KEY, API_KEYS = "SHOAL_API_KEY", f"{keys.PREFIX}API_KEYS"
"""Environment variables of the key that a command sends, and of the keys that a node accepts."""
NOT_SETTINGS = frozenset(
    {"SHOAL_HOME", "SHOAL_SLOT", "SHOAL_URL", "SHOAL_CA", "SHOAL_OVERLAY", API_KEY, LAUNCHED_BY}
)
"""Variables with our prefix that are not settings: the home, a runner's slot and overlay, the
target, certificate authority and API key of the CLI, and the node's launcher."""
FOREIGN_PREFIXES = ("SHOAL_TEST_", "SHOAL_BENCH_", "SHOAL_PROVE")
FEWEST_VOTERS = 3
"""With fewer voters than this, no majority survives the loss of a node."""


class ProcessArguments(TypedDict):
    """The arguments of `bus.service.run_service` that come from the settings."""

    node: NodeId
    endpoints: Endpoints
    log_level: str
    keys: KeyFiles
    trouble: str
    levels: LevelSource


class Settings(BaseModel):
    """All settings of one node, resolved. default.toml documents them.

    `api_keys` are always hashes (`sha256:<hex>`). In `preload` the word `default` is replaced by
    the default model. `http_processes` is at least 1."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node_name: str
    http_host: str
    http_port: int = Field(ge=1, le=65535)
    api: bool
    base_port: BasePort
    http_processes: int = Field(ge=0, le=64)
    http_owner_only: bool
    http_anyone_pulls: bool
    dashboard: bool
    http_tls_cert: WholePath
    http_tls_key: WholePath
    http_names: Words
    cors_origins: Words
    trusted_proxies: Networks
    api_keys: Words
    cluster_key_file: str
    slots: int = Field(ge=1, le=99)
    log_level: Literal["debug", "info", "warning", "error", "critical"]
    default_model: str = Field(min_length=1)
    preload: Words
    keep_alive_s: float
    voters: Words
    master_priority: int
    settle_grace_s: float = Field(ge=35.0)
    strict_fields: bool
    request_timeout_s: float = Field(ge=0.0)
    resume: bool
    memory_bytes: int = Field(ge=0)
    model_folders: Words
    bundled_model: bool
    weights_bytes_per_s: Brisk
    store_bytes: int
    store: bool
    offline: bool
    pull_names: PullNames
    pull_on_demand: PullPatterns
    runner: RunnerSettings
    cluster: ClusterSettings
    records: RecordsSettings
    fetch: FetchSettings
    tools: ToolsSettings
    jobs: JobsSettings
    pool: PoolTable
    keep_alive: KeepAliveSettings
    otlp: OtlpSettings

    _paths: Paths
    _sources: dict[str, str]
    _flags: dict[str, Any]
    _trouble: str = ""

    @property
    def paths(self) -> Paths:
        """Return the folders of this node's home."""
        return self._paths

    @property
    def endpoints(self) -> Endpoints:
        """Return the paths of this node's Unix sockets."""
        return Endpoints(str(self._paths.runtime))

    @property
    def key_files(self) -> KeyFiles:
        """Return the files of the cluster's keys and of the admitted nodes."""
        return KeyFiles(self.cluster_key, self._paths.known_nodes, self._paths.machine_key)

    @property
    def cluster_key(self) -> Path:
        """Return the file with the cluster's keys; it may not exist."""
        chosen = self.cluster_key_file
        return Path(chosen).expanduser().resolve() if chosen else self._paths.cluster_key

    @property
    def sources(self) -> Mapping[str, str]:
        """Return the layer from which each setting's value comes, by dotted key."""
        return self._sources

    @property
    def flags(self) -> Mapping[str, Any]:
        """Return the flags by dotted key; children of `shoal up` get them as variables."""
        return self._flags

    @property
    def trouble(self) -> str:
        """Return what is wrong with `shoal.toml`; "" if it is fine. If it is wrong, this object has
        the settings with which the node started."""
        return self._trouble

    @property
    def url(self) -> str:
        """Return the URL of the HTTP API on this machine; `unix://` and a path if `api` is off."""
        scheme = "https" if self.tls else "http"
        at_port = f"{scheme}://{host_here(self.http_host)}:{self.http_port}"
        return at_port if self.api else f"unix://{self.endpoints.http}"

    @property
    def tls(self) -> TlsFiles | None:
        """Return the files of HTTPS; None for plain HTTP, which a Unix socket always uses."""
        files = [os.path.expanduser(file) for file in (self.http_tls_cert, self.http_tls_key)]
        return TlsFiles(*files) if all(files) and self.api else None

    def announced_hosts(self) -> tuple[str, ...]:
        """Return the hosts that other nodes should connect to now, best first; none if the node is
        closed to others."""
        hosts, listen = self.cluster.addresses, self.cluster.listen
        here = reachable_hosts() if listen in WILDCARDS else (listen,)
        return here if listen and not hosts else hosts

    def port_of(self, use: str) -> int:
        """Return the first port of `use`, a key of the table `conf.ports.PORTS`."""
        return self.http_port if use == "http" else port_of(use, self.base_port or None)

    def process_arguments(self) -> ProcessArguments:
        """Return the arguments of every process of this node. Creates the node's id if needed."""
        return ProcessArguments(
            node=node_id(self._paths.state),
            endpoints=self.endpoints,
            log_level=self.log_level,
            keys=self.key_files,
            trouble=self._trouble,
            levels=self.levels,
        )

    @property
    def levels(self) -> LevelSource:
        """Return the source of the log level, which processes read again when the file changes."""

        def now() -> tuple[str, str]:
            """Return the current log level and what is wrong with the settings file."""
            home = self._paths.home if self._paths.chosen else None
            current = load_settings(home=home, flags=self._flags)
            return current.log_level, current.trouble

        return LevelSource(self._paths.config_file, now)

    def rows(self) -> list[tuple[str, Any, str]]:
        """Return (dotted key, value, source) of every setting, for `shoal config show`."""
        values = keys.flat(self.model_dump())
        return [(key, value, self._sources.get(key, "derived")) for key, value in values.items()]

    @field_validator("api_keys")
    @classmethod
    def _hashed(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(key if is_hash(key) else hash_key(key) for key in keys)

    @field_validator("voters")
    @classmethod
    def _enough(cls, voters: tuple[str, ...]) -> tuple[str, ...]:
        if voters and len(set(voters)) < FEWEST_VOTERS:
            raise ValueError(f"must have {FEWEST_VOTERS} or more different node ids, or none")
        return voters

    @field_validator("node_name")
    @classmethod
    def _named(cls, name: str) -> str:
        return name or socket.gethostname().split(".")[0] or "node"

    @field_validator("http_processes")
    @classmethod
    def _counted(cls, count: int) -> int:
        return count or max(1, min(4, (os.cpu_count() or 1) // 2))

    @field_validator("preload")
    @classmethod
    def _default_preloaded(cls, preload: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        default = info.data.get("default_model", "")
        return tuple(default if word == "default" else word for word in preload)

    @model_validator(mode="after")
    def _paired(self) -> Settings:
        if bool(self.http_tls_cert) != bool(self.http_tls_key):
            raise ValueError(ONE_OF_TWO.format(set="cert" if self.http_tls_cert else "key"))
        return self


def load_settings(
    *,
    home: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    remembered: bool = True,
) -> Settings:
    """Return the settings of `home`, else of $SHOAL_HOME, else of this system's folders.

    `flags` is by dotted key; None means that a flag was not given. `remembered` False ignores the
    flags of the last `shoal up`, as `shoal up` itself needs. Raises ConfigError, which names the
    setting, its source and the accepted values. While a node is up, a bad `shoal.toml` does not
    raise: the file of the node's start is used, and `trouble` says what is wrong.
    """
    paths = find_paths(home)
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    try:
        return _load(paths, given, paths.config_file, remembered=remembered)
    except ConfigError as error:
        if not remembered or not paths.up_file.exists():
            raise
        settings = _load(paths, given, paths.up_config, remembered=True)
        settings._trouble = str(error)  # pyright: ignore[reportPrivateUsage] - its own factory
        return settings


def _load(paths: Paths, given: dict[str, Any], file: Path, *, remembered: bool) -> Settings:
    layers = [
        ("default", _read_toml(DEFAULTS_FILE)),
        (f"file {file}", _read_toml(file)),
        ("shoal up", keys.nested(_read_json(paths.up_file)) if remembered else {}),
        ("environment", _environment()),
        ("flag", keys.nested(given)),
    ]
    return _merged(paths, given, file, layers)


def settings_of_file(paths: Paths, file: Path, *, alone: bool) -> Settings:
    """Return the settings with `file` in place of `shoal.toml`. `alone`: without the environment
    and the flags of `shoal up`. Raises ConfigError."""
    if not alone:
        return _load(paths, {}, file, remembered=True)
    layers = [("default", _read_toml(DEFAULTS_FILE)), (f"file {file}", _read_toml(file))]
    return _merged(paths, {}, file, layers)


def _merged(
    paths: Paths, given: dict[str, Any], file: Path, layers: list[tuple[str, dict[str, Any]]]
) -> Settings:
    merged, sources = dict[str, Any](), dict[str, str]()
    for label, values in layers:
        is_environment = label == "environment"
        for key, value in keys.flat(values).items():
            sources[key] = f"{label} {keys.variable_of(key)}" if is_environment else label
            keys.put(merged, key, value)
    text = str(merged.get("base_port"))
    base_port = int(text) if text.isdigit() else 0
    if base_port and sources.get("http_port") == "default":
        merged["http_port"] = port_of("http", base_port)
        sources["http_port"] = f"base_port ({sources['base_port']})"
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(_explained(error, sources, file)) from None
    settings._paths = paths  # pyright: ignore[reportPrivateUsage]
    settings._sources = sources  # pyright: ignore[reportPrivateUsage]
    settings._flags = given  # pyright: ignore[reportPrivateUsage]
    return settings


def _environment() -> dict[str, Any]:
    names = set(Settings.model_fields)
    for variable in os.environ:
        if not variable.startswith(keys.PREFIX) or variable in NOT_SETTINGS:
            continue
        key = _key_of(variable)
        if key not in names and not variable.startswith(FOREIGN_PREFIXES):
            hint = keys.similar_key(key, names, TABLES)
            wrong = keys.not_a_setting(key, variable, keys.variable_of(hint) if hint else None)
            raise ConfigError(f"environment: {wrong}")
    return {} if names.isdisjoint(map(_key_of, os.environ)) else _variables()


def _variables() -> dict[str, Any]:
    # this import takes 40 ms, and most commands run without such variables
    from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsError

    class Environment(EnvSettingsSource):
        def decode_complex_value(self, field_name: str, field: Any, value: Any) -> Any:
            is_words = BeforeValidator(words) in getattr(field, "metadata", ())
            return value if is_words else super().decode_complex_value(field_name, field, value)

    model = cast("type[BaseSettings]", Settings)  # the source reads only the model's fields
    try:
        return Environment(model, env_prefix=keys.PREFIX, env_nested_delimiter="__")()
    except SettingsError as error:
        raise ConfigError(f"environment: {error}") from error


def _key_of(variable: str) -> str:
    """Return the setting or table that a variable sets; empty for variables without our prefix."""
    is_ours = variable[: len(keys.PREFIX)].upper() == keys.PREFIX
    return variable[len(keys.PREFIX) :].lower().split("__")[0] if is_ours else ""


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return cast(dict[str, Any], json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


def _explained(error: ValidationError, sources: Mapping[str, str], file: Path) -> str:
    detail = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in detail["loc"] if isinstance(part, str))
    source = sources.get(key) or next(
        (label for name, label in sources.items() if name.startswith(key + ".")), "default"
    )
    if source == f"file {file}":
        line = keys.line_of(file.read_text(), key)
        source += f", line {line}" if line else ""
    if detail["type"] == "extra_forbidden":
        hint = keys.similar_key(key, Settings.model_fields, TABLES)
        return f"{source}: {keys.not_a_setting(key, key, hint)}"
    message = problem_text(detail)
    return f"{source}: {key} = {masked(key, detail['input'])!r}: {message}" if key else message
