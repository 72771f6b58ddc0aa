"""Settings of a gateway before it starts: addresses, limits and who may connect.

Pure. The program builds the options once at its start from `conf`. All other modules only read
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from typing_extensions import TypedDict

from bus.process.endpoints import Endpoints, is_loopback
from bus.wire.cards import ModelKind
from bus.wire.ids import NodeId

if TYPE_CHECKING:
    from bus.links.cluster_key import KeyFiles
    from bus.links.tls_files import TlsFiles
    from bus.process.logs import LevelSource


SettingValue = bool | int | float | str | list[str]


class SettingRow(TypedDict):
    """A setting. `value` is from `source` (the file or the default); `running` is what this process
    uses."""

    key: str
    meaning: str
    kind: Literal["choice", "truth", "whole", "number", "words", "text"]
    choices: list[str]
    default: SettingValue
    value: SettingValue
    source: str
    running: SettingValue
    differs: bool
    takes: Literal["at once", "restart"]
    not_over_http: str


class SettingsFound(TypedDict):
    """The settings of a node. `trouble` says what is wrong with the settings file."""

    file: str
    trouble: str
    settings: list[SettingRow]


class SettingsDesk(Protocol):
    """Reads and changes the settings of this node. It blocks and raises ConfigError."""

    def rows(self) -> dict[str, Any]:
        """Return all settings that may be shown and problems of their file, in the form of
        `SettingsFound`."""
        ...

    def change(self, put: Mapping[str, Any], drop: Sequence[str]) -> None:
        """Set and unset settings by dotted key, for processes that start later."""
        ...

    def why_not_over_http(self, key: str) -> str:
        """Return why a setting cannot be changed over HTTP; empty if it can."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of one gateway. Seconds are wall-clock.

    `request_timeout_s` bounds the time between two messages of a runner about a request (0: no
    bound). Loading has its own bound, `load_timeout_s`. `resume`: answers outlive their runners.

    `keys` are the hashes of API keys (`gateway.access`); `owner_key` is the hash of the node
    owner's key. `names` are further Host names that the gateway accepts. `origins` are further web
    origins whose pages may call the gateway. `trusted_proxies` are addresses and networks of
    proxies whose X-Forwarded-For is believed. `anyone_pulls`: while no API keys are set, users
    other than the node's owner may also pull models, as Ollama's clients do.

    `headers_s` is the time from a connection to the complete headers of its first request. `body_s`
    bounds the time of a whole body, however steadily it arrives. `max_connections` counts for one
    HTTP process. After SIGTERM, open answers may continue for `drain_s`, then end with an error.
    `strict_fields` refuses fields that no dialect has. `cluster_keys` protect messages to other
    nodes.

    `models_folder` has this node's own models; only these can be deleted (empty: none can).
    `records_file` is the database that the HTTP processes share (empty: none). The database keeps
    at most `request_rows` ended requests, `request_bytes` in all, for `request_days`. Traces and
    answers have the same three limits; `answer_rows` of 0 keeps no answers. Jobs have at most
    `job_rows` and `job_bytes`, and one client may have `jobs_per_client` open jobs. The results of
    jobs stay for `job_ttl_s` unless the job asks for another time. At most `jobs_running` jobs run
    at a time.

    `trace_sample` is the share of requests that are traced although the client does not ask for a
    trace. Traces are also sent to `otlp_endpoint` with `otlp_headers` (empty: not sent).

    `tasks_file` names the models for tasks and the providers (empty: none). `clients_file` has the
    settings of single clients. `keep_alive_most_s` is the longest time, by kind of model, that a
    client can keep a model loaded (below 0: no limit).

    `logs_folder` has the log files of this node's processes (empty: they cannot be read).
    `history_file` has the figures of the last hour (empty: none are kept). `pull_names` maps
    well-known names to repositories. A request for a model that matches `pull_on_demand` pulls the
    model. Without `has_port`, HTTP listens only at a socket in the runtime folder. `tls` has the
    files of HTTPS (None: plain HTTP). `dashboard`: the gateway serves the web page to browsers.

    `fetch_*` limit what `gateway.fetching` may fetch for clients. `search` is the kind of search
    engine at `search_url` (empty: none). `settings` reads and changes this node's settings (None:
    not possible). `levels` sets the log level. `settings_shown` has the settings that may be shown,
    by key, with value and source. `secret_files` hold keys, which no capture may contain.
    """

    node: NodeId
    node_name: str
    endpoints: Endpoints
    metrics_folder: str
    host: str = "localhost"
    port: int = 52415
    has_port: bool = True
    processes: int = 1
    request_timeout_s: float = 120.0
    resume: bool = True
    load_timeout_s: float = 300.0
    body_limit_bytes: int = 32 << 20
    body_depth: int = 64
    strict_fields: bool = False
    body_s: float = 120.0
    headers_s: float = 10.0
    max_connections: int = 1024
    max_waiting: int = 256
    max_open: int = 2048
    keys: tuple[str, ...] = ()
    owner_key: str = ""
    anyone_pulls: bool = False
    names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    drain_s: float = 6.0
    cluster_keys: KeyFiles | None = None
    models_folder: str = ""
    records_file: str = ""
    logs_folder: str = ""
    history_file: str = ""
    tasks_file: str = ""
    clients_file: str = ""
    keep_alive_most_s: Mapping[ModelKind, float] = field(
        default_factory=lambda: {"text": -1.0, "embedding": -1.0, "reranker": -1.0}
    )
    request_rows: int = 100_000
    request_bytes: int = 64 << 20
    request_days: float = 14.0
    trace_sample: float = 0.0
    trace_rows: int = 2_000
    trace_bytes: int = 64 << 20
    trace_days: float = 3.0
    otlp_endpoint: str = ""
    otlp_headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    tls: TlsFiles | None = None
    fetch_enabled: bool = False
    fetch_allow: tuple[str, ...] = ("*",)
    fetch_bytes: int = 5 << 20
    fetch_s: float = 20.0
    fetch_redirects: int = 5
    fetch_types: tuple[str, ...] = ("text/*",)
    pull_names: Mapping[str, str] = field(default_factory=dict[str, str])
    pull_on_demand: tuple[str, ...] = ()
    search: str = ""
    search_url: str = ""
    answer_rows: int = 20_000
    answer_bytes: int = 256 << 20
    answer_days: float = 30.0
    jobs_running: int = 4
    jobs_per_client: int = 100
    job_rows: int = 10_000
    job_bytes: int = 256 << 20
    job_ttl_s: float = 86_400.0
    log_level: str = "info"
    levels: LevelSource | None = None
    settings: SettingsDesk | None = None
    dashboard: bool = True
    version: str = "0.1.0"
    settings_shown: Mapping[str, Any] = field(default_factory=dict[str, Any])
    secret_files: tuple[str, ...] = ()

    @property
    def keeps_traces(self) -> bool:
        """Return whether this node stores traces of requests."""
        return bool(self.records_file) and self.trace_rows > 0

    @property
    def traces(self) -> bool:
        """Return whether requests may be traced: traces are stored or exported."""
        return self.keeps_traces or bool(self.otlp_endpoint)

    @property
    def asks_for_keys(self) -> bool:
        """Return whether clients need an API key, even while the cluster has none."""
        return bool(self.keys) or not is_loopback(self.host)
