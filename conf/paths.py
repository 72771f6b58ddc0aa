"""Talks to the disk: the folders of a home, one table for the whole suite, and which files and
folders a node that runs cannot do without (decision 0080).

| folder    | with `--home DIR` | without it                | holds                        |
|-----------|-------------------|---------------------------|------------------------------|
| `config`  | `DIR/config`      | `$XDG_CONFIG_HOME/shoal`  | `shoal.toml`, `tasks.toml`,  |
|           |                   |                           | `clients.toml`               |
| `data`    | `DIR/data`        | `$XDG_DATA_HOME/shoal`    | `models/`                    |
| `state`   | `DIR/state`       | `$XDG_STATE_HOME/shoal`   | ids, keys, journal, records, |
|           |                   |                           | run/, logs/                  |
| `runtime` | `/tmp/shoal-<uid>/<hash of the home>`, both   || sockets and their locks      |

(macOS has its own places for the XDG folders, and the runtime folders lie in
`~/Library/Caches/shoal` there: it takes files from /tmp that were not touched for three days.)
The runtime folder does not follow TMPDIR: every process of a home has to find the same
sockets, from any shell that it was started in, and socket paths must stay short.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from bus.process.endpoints import Endpoints, Means, Removed
from bus.process.logs import file_of
from bus.wire.errors import ConfigError

HOME_VARIABLE = "SHOAL_HOME"
PRIVATE = 0o700
MAX_ROOT_BYTES = 65
"""Of the folder of runtime folders: a home's hash and a socket's name come behind it."""
COUNTERS = "gateway-metrics"
"""In the runtime folder: what the gateway's HTTP processes count."""
OWNER_S = 10.0
"""For as long a file may be gone, for its owner looks every few seconds."""
REOPEN_LOGS_S = 5.0
TOLD_S = 600.0
"""For as long it is told that something was removed and is back."""
BUNDLED_MODEL = "shoal-tiny"
"""The model that comes with shoal; see `bundled_models`."""


@dataclass(frozen=True, slots=True)
class Paths:
    """The folders of one home. `chosen`: the home was given and is not the system's."""

    home: Path
    chosen: bool
    config: Path
    data: Path
    state: Path
    runtime: Path

    @property
    def models(self) -> Path:
        """Return the folder of models: one folder per model, named by its id."""
        return self.data / "models"

    @property
    def kernels(self) -> Path:
        """Return the folder of MLX's compiled kernels: of this user alone, for what lies there is
        loaded as code, and shared by all of the user's homes, for making it takes a while."""
        return self.runtime.parent / "kernels"

    @property
    def measured(self) -> Path:
        """Return the folder of what was measured of this machine, which all of the user's homes
        share, for measuring takes a while."""
        return self.runtime.parent / "measured"

    @property
    def busy_runners(self) -> Path:
        """Return the file in which the user's runners count who is busy, of all homes."""
        return self.measured / "busy-runners"

    @property
    def preloads(self) -> Path:
        """Return the folder of libraries that are compiled here and preloaded into runners. All of
        the user's homes share it, for compiling takes a second."""
        return self.runtime.parent / "preloads"

    @property
    def logs(self) -> Path:
        """Return the folder in which supervisord keeps each process's output."""
        return self.state / "logs"

    @property
    def run(self) -> Path:
        """Return the working directory of every process."""
        return self.state / "run"

    @property
    def journal(self) -> Path:
        """Return the file of the master's journal."""
        return self.state / "journal"

    @property
    def records(self) -> Path:
        """Return the SQLite file of what the gateway's HTTP processes remember together."""
        return self.state / "records.sqlite"

    @property
    def history(self) -> Path:
        """Return the file of what was measured in the last hour."""
        return self.state / "history"

    @property
    def cluster_key(self) -> Path:
        """Return the file of the cluster's keys, unless `cluster_key_file` is set."""
        return self.state / "cluster-key"

    @property
    def machine_key(self) -> Path:
        """Return the file of the key that this user's nodes on this machine share, which have no
        cluster key."""
        return self.runtime.parent / "machine-key"

    @property
    def known_nodes(self) -> Path:
        """Return the file of the nodes that this one has met, by which it admits them."""
        return self.state / "known-nodes"

    @property
    def config_file(self) -> Path:
        """Return the file of the settings, `shoal.toml`."""
        return self.config / "shoal.toml"

    @property
    def tasks_file(self) -> Path:
        """Return the file of tasks and providers, `tasks.toml`."""
        return self.config / "tasks.toml"

    @property
    def clients_file(self) -> Path:
        """Return the file of clients' profiles, `clients.toml`."""
        return self.config / "clients.toml"

    @property
    def up_file(self) -> Path:
        """Return the file of the flags of `shoal up`, so that later commands agree with it."""
        return self.state / "up.json"

    @property
    def up_config(self) -> Path:
        """Return the copy of `shoal.toml` that the node was started with, for when that file cannot
        be read any more."""
        return self.state / "up.toml"

    @property
    def supervisord_conf(self) -> Path:
        """Return the configuration that supervisord was started with."""
        return self.state / "supervisord.conf"

    @property
    def supervisord_pid(self) -> Path:
        """Return the file of supervisord's process id."""
        return self.state / "supervisord.pid"


def find_paths(home: Path | None = None) -> Paths:
    """Return the folders of `home`, else of $SHOAL_HOME, else of this system. Makes none."""
    given = str(home) if home is not None else os.environ.get(HOME_VARIABLE, "")
    if given:
        home = Path(given).expanduser().resolve()
        config, data, state = home / "config", home / "data", home / "state"
    else:
        system = platformdirs.PlatformDirs("shoal", appauthor=False)
        config, data = system.user_config_path.resolve(), system.user_data_path.resolve()
        home = state = system.user_state_path.resolve()
    return Paths(home, bool(given), config, data, state, _runtime(home))


def make_folders(paths: Paths) -> None:
    """Make every folder, private to this user. Raises ConfigError when the runtime folder
    belongs to another user (every user may make names under /tmp)."""
    for folder in (paths.kernels, paths.measured, paths.preloads, paths.runtime):
        _make_shared(folder)
    for folder in (paths.config, paths.data, paths.models, paths.state, paths.logs, paths.run):
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)


def _make_shared(folder: Path) -> None:
    """Make a folder where other users may make names, and the one above it."""
    for one in (folder.parent, folder):
        one.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        found = one.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise ConfigError(
                f"another user owns {one}; remove it, because the sockets of this home go there"
            )
        one.chmod(PRIVATE)


def means_of(paths: Paths, endpoints: Endpoints, services: Sequence[str]) -> tuple[Means, ...]:
    """Return what a node's processes need of the disk, in the order in which it is made anew."""
    starts_none, logs = "no runner can start", "the log lines until then"
    folders = (
        Means("the folder of sockets", paths.runtime, "its processes cannot be reached"),
        Means(
            "the folder of counters",
            paths.runtime / COUNTERS,
            "requests that use a new counter fail",
        ),
        Means("the folder of kernels", paths.kernels, starts_none),
        Means("the folder of logs", paths.logs, f"{starts_none}, nothing is logged", lost=logs),
        Means("the working folder", paths.run, starts_none),
        Means(
            "the folder of models", paths.models, "no model can be downloaded", lost="its models"
        ),
    )
    files = (
        Means("the journal", paths.journal / "events.log", "no change survives a stop", "master"),
        Means("the records file", paths.records, "nothing is kept", "gateway", "its content"),
    )
    held = [
        Means(f"a socket of {owner}", Path(path), f"{owner} cannot be reached", owner)
        for owner, sockets in endpoints.services().items()
        for path in sockets
    ]
    locks = [
        Means(f"the lock of {one}", paths.runtime / f"{one}.role", "it may run twice", one)
        for one in services
    ]
    written = [
        Means(
            f"the log of {one}",
            paths.logs / file_of(one),
            "it cannot write its log",
            "supervisord",
            logs,
        )
        for one in ("supervisord", *services)
    ]
    return (*folders, *files, *held, *locks, *written)


class MeansKeeper:
    """Looks after the means of a node: makes folders anew, and has supervisord open logs anew. A
    file is its owner's to make. To be asked in one thread."""

    def __init__(
        self, paths: Paths, means: Sequence[Means], reopen_logs: Callable[[], None]
    ) -> None:
        self._paths = paths
        self._means = means
        self._reopen_logs = reopen_logs
        self._seen: set[Means] = set()
        self._gone_at: dict[Means, float] = {}
        self._back_at: dict[Means, float] = {}
        self._reopened_at = -REOPEN_LOGS_S

    def look(self, running: Collection[str], now: float) -> tuple[Removed, ...]:
        """Return what was removed: what is still gone, and what is back since a few minutes.
        Of processes that are not `running` no file is missed."""
        mine = [one for one in self._means if one.owner in ("", "supervisord", *running)]
        gone = [one for one in mine if one in self._seen and not os.path.exists(one.path)]
        self._gone_at = dict.fromkeys(gone, now) | self._gone_at
        troubles = self._restored(gone, now)
        for one in self._means:
            if os.path.exists(one.path):
                self._seen.add(one)
                if self._gone_at.pop(one, None) is not None:
                    self._back_at[one] = now
            elif one not in gone:
                self._gone_at.pop(one, None)
        missed = [
            Removed(one, is_back=False, trouble=troubles.get(one, ""))
            for one, at in self._gone_at.items()
            if not one.owner or now - at >= OWNER_S
        ]
        back = [one for one, at in self._back_at.items() if one.lost and now - at < TOLD_S]
        folders = {one.path for one in back}
        told = [one for one in back if one.path.parent not in folders]
        return (*missed, *(Removed(one, is_back=True) for one in told))

    def _restored(self, gone: Sequence[Means], now: float) -> dict[Means, str]:
        """Make anew what can be made here; return what could not, with the reason."""
        troubles: dict[Means, str] = {}
        for one in gone:
            if one.owner:
                continue
            try:
                if self._paths.runtime.parent in one.path.parents:
                    _make_shared(one.path)
                else:
                    one.path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            except (OSError, ConfigError) as error:
                troubles[one] = str(error)
        logs = self._paths.logs
        is_due = now - self._reopened_at >= REOPEN_LOGS_S and logs.is_dir()
        if is_due and any(logs in (one.path, one.path.parent) for one in gone):
            self._reopened_at = now
            self._reopen_logs()
        return troubles


def bundled_models() -> dict[str, Path]:
    """Return the models that came with the program, name to folder; none where left out."""
    folder = Path(__file__).parent / "tiny"
    found = next((f for f in (folder, folder / "model") if (f / "config.json").exists()), None)
    return {} if found is None else {BUNDLED_MODEL: found}


def _runtime(home: Path) -> Path:
    root = Path("/tmp") if os.access("/tmp", os.W_OK) else Path(tempfile.gettempdir())
    cache = platformdirs.user_cache_path("shoal", appauthor=False)
    digest = hashlib.sha256(str(home).encode()).hexdigest()[:10]
    return runtime_root(sys.platform, root.resolve(), cache, os.getuid()) / digest


def runtime_root(system: str, temporary: Path, cache: Path, user: int) -> Path:
    """Return where the runtime folders of a user lie: on macOS in the user's cache, as long as
    socket paths stay short, elsewhere in the system's temporary folder."""
    if system == "darwin" and len(os.fsencode(cache)) <= MAX_ROOT_BYTES:
        return cache
    return temporary / f"shoal-{user}"


def damaged_files(paths: Paths) -> tuple[str, ...]:
    """Return the paths of the damaged files of a node's state that were kept aside."""
    folders = (paths.journal, paths.state)
    return tuple(str(one) for folder in folders for one in sorted(folder.glob("*.damaged")))
