"""What a gateway has to know before it starts: addresses, limits, who may come in.

Pure. Built once by the composition root from `conf`; everything else reads this.
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
    """A setting: in the file or by default (`value`, from `source`), and as it `running` has it."""

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
    """The settings of a node, and what is wrong with their file."""

    file: str
    trouble: str
    settings: list[SettingRow]


class SettingsDesk(Protocol):
    """What reads and changes the settings of this node. It blocks, and raises ConfigError."""

    def rows(self) -> dict[str, Any]:
        """Return every setting as it may be shown, and what is wrong with their file, as
        `SettingsFound` has it."""
        ...

    def change(self, put: Mapping[str, Any], drop: Sequence[str]) -> None:
        """Set and unset settings by dotted key, for processes that start from now on."""
        ...

    def why_not_over_http(self, key: str) -> str:
        """Return why a setting is not changed over HTTP; "" where it is."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """One gateway. Seconds are wall-clock.

    `request_timeout_s` bounds the time without progress from a request's first entry on (0:
    none); loading has `load_timeout_s` to itself. `keys` are the hashes of API keys
    (`gateway.http.auth`), `owner_key` that of what this node's owner has; `names` are further Host
    names, `origins` further web origins that may call; `trusted_proxies` are the addresses and
    networks whose X-Forwarded-For counts.
    `anyone_pulls`: where no key is asked for, others than the node's owner may have models pulled
    as Ollama's clients do.
    `headers_s` is the time from a connection to its first request's complete headers,
    `body_s` that for a whole body, however steadily it trickles; `max_connections` are those of one
    HTTP process. `drain_s` is how long open answers may go on after SIGTERM before they end
    with an error. `strict_fields` refuses fields that no dialect knows.
    `cluster_keys` are for what goes to other nodes.
    `models_folder` holds this node's own models, which alone can be deleted (empty: none can).
    `records_file` is what the HTTP processes remember together (empty: nothing); of requests that
    have ended at most `request_rows`, of `request_bytes` together, for `request_days`; of traces
    the same, and `trace_sample` is the share of requests that is traced unasked; they go to
    `otlp_endpoint` as well, with `otlp_headers` (empty: nowhere); of answers
    that are kept at most `answer_rows` (0: none), of `answer_bytes`, for `answer_days`; of jobs at
    most `job_rows` of `job_bytes` together, `jobs_per_client` open ones, with results for
    `job_ttl_s` where they ask for no other time. `jobs_running` run at a time.
    `tasks_file` says which models answer for tasks, and where providers are ("": none do),
    `clients_file` what counts for single clients; `keep_alive_most_s` is how long a client's wish
    keeps a model of a kind at most, below 0 without end.
    `logs_folder` has the log files of this node's processes (empty: none can be read),
    `history_file` what was measured in the last hour (empty: nothing is kept).
    `pull_names` are the repositories that names stand for which people know, `pull_on_demand` the
    patterns of those that a request for them pulls.
    `has_port` False: HTTP listens at a socket in the runtime folder alone.
    `tls` are the files of HTTPS (None: plain HTTP).
    `dashboard`: browsers are given the page.
    `fetch_*` are what `gateway.fetching` may fetch for clients; `search` names the kind of search
    engine at `search_url` (empty: none).
    `settings` reads and changes those of this node (None: nothing does), `levels` says from which
    level on is logged. `settings_shown` are the settings by key, with value and source, as they may
    be shown; `secret_files` have keys, which no capture may have.
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
        default_factory=lambda: {"text": -1.0, "embedding": -1.0}
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
        """Return whether this node keeps any traces of requests."""
        return bool(self.records_file) and self.trace_rows > 0

    @property
    def traces(self) -> bool:
        """Return whether requests may be traced: traces are kept or exported."""
        return self.keeps_traces or bool(self.otlp_endpoint)

    @property
    def asks_for_keys(self) -> bool:
        """Return whether clients need an API key, also while the cluster has none."""
        return bool(self.keys) or not is_loopback(self.host)
