"""Talks to the disk: the folders of a home, and the files and folders that a running node needs
(decision 0080).

| folder    | with `--home DIR` | without it                | holds                        |
|-----------|-------------------|---------------------------|------------------------------|
| `config`  | `DIR/config`      | `$XDG_CONFIG_HOME/shoal`  | `shoal.toml`, `tasks.toml`,  |
|           |                   |                           | `clients.toml`               |
| `data`    | `DIR/data`        | `$XDG_DATA_HOME/shoal`    | `models/`                    |
| `state`   | `DIR/state`       | `$XDG_STATE_HOME/shoal`   | ids, keys, journal, records, |
|           |                   |                           | run/, logs/                  |
| `runtime` | `/tmp/shoal-<uid>/<hash of the home>`, both   || sockets and their locks      |

macOS has its own places for the XDG folders. There the runtime folders are in
`~/Library/Caches/shoal`, because macOS deletes files in /tmp after three days without use. The
runtime folder does not follow TMPDIR, because all processes of a home must find the same sockets,
from any shell. Socket paths must also stay short.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import platformdirs

from bus.process.endpoints import Endpoints, Means, Removed
from bus.process.logs import file_of
from bus.wire.errors import ConfigError

HOME_VARIABLE = "SHOAL_HOME"
PRIVATE = 0o700
MAX_ROOT_BYTES = 65
"""Greatest length of the path above the runtime folders. A hash and a socket's name are added to
it, and systems limit a socket's path."""
COUNTERS = "gateway-metrics"
"""Subfolder of the runtime folder that has the metrics of the gateway's HTTP processes."""
OWNER_S = 10.0
"""A missing file is reported only after this time, because its owner usually restores it within a
few seconds."""
REOPEN_LOGS_S = 5.0
REPORTED_S = 600.0
"""A file or folder that was removed and restored is reported for this time."""
LLAMA_LIBRARY, LLAMA_PROGRAM = "xllamacpp", "runner.llama.program"
"""The package of the extra `llamacpp`, and the module that serves with it."""
BUNDLED_MODEL = "shoal-tiny"
"""The name of the model that comes with shoal; see `bundled_models`."""


@dataclass(frozen=True, slots=True)
class Paths:
    """The folders of one home. `chosen`: the user named the home; otherwise the system's folders
    are used."""

    home: Path
    chosen: bool
    config: Path
    data: Path
    state: Path
    runtime: Path

    @property
    def models(self) -> Path:
        """Return the folder of models. It has one folder per model, with the model's id as its
        name."""
        return self.data / "models"

    @property
    def kernels(self) -> Path:
        """Return the folder of MLX's compiled kernels. It is private to this user, because its
        files are loaded as code. All homes of the user share it, because compiling is slow."""
        return self.runtime.parent / "kernels"

    @property
    def measured(self) -> Path:
        """Return the folder of measurements of this machine. All homes of the user share it,
        because measuring is slow."""
        return self.runtime.parent / "measured"

    @property
    def busy_runners(self) -> Path:
        """Return the file with the number of busy runners in all of the user's homes."""
        return self.measured / "busy-runners"

    @property
    def preloads(self) -> Path:
        """Return the folder of libraries that this machine compiles and preloads into runners. All
        homes of the user share it, because compiling takes a second."""
        return self.runtime.parent / "preloads"

    @property
    def logs(self) -> Path:
        """Return the folder of supervisord's logs: one file for each process."""
        return self.state / "logs"

    @property
    def run(self) -> Path:
        """Return the working directory of every process."""
        return self.state / "run"

    @property
    def journal(self) -> Path:
        """Return the file of the master's journal (its log of events)."""
        return self.state / "journal"

    @property
    def records(self) -> Path:
        """Return the SQLite file that the gateway's HTTP processes share."""
        return self.state / "records.sqlite"

    @property
    def history(self) -> Path:
        """Return the file with the metrics of the last hour."""
        return self.state / "history"

    @property
    def cluster_key(self) -> Path:
        """Return the default file of the cluster's keys. The setting `cluster_key_file` can name
        another one."""
        return self.state / "cluster-key"

    @property
    def machine_key(self) -> Path:
        """Return the file of the key that this user's nodes without a cluster key share on this
        machine."""
        return self.runtime.parent / "machine-key"

    @property
    def known_nodes(self) -> Path:
        """Return the file with the ids of the nodes that this node admits; their public keys derive
        from the ids."""
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
        """Return the file with the flags of `shoal up`, which later commands read."""
        return self.state / "up.json"

    @property
    def up_config(self) -> Path:
        """Return the copy of `shoal.toml` that was made when the node started. It is used while
        `shoal.toml` cannot be read."""
        return self.state / "up.toml"

    @property
    def supervisord_conf(self) -> Path:
        """Return the file of supervisord's configuration."""
        return self.state / "supervisord.conf"

    @property
    def supervisord_pid(self) -> Path:
        """Return the file of supervisord's process id."""
        return self.state / "supervisord.pid"


def find_paths(home: Path | None = None) -> Paths:
    """Return the folders of `home`, else of $SHOAL_HOME, else of this system. Creates none."""
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
    """Make every folder, private to this user. Raises ConfigError if another user owns the runtime
    folder; every user may create files in /tmp."""
    for folder in (paths.kernels, paths.measured, paths.preloads, paths.runtime):
        _make_shared(folder)
    for folder in (paths.config, paths.data, paths.models, paths.state, paths.logs, paths.run):
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)


def _make_shared(folder: Path) -> None:
    """Make a folder and its parent at a place where other users may create files. Raises
    ConfigError if another user owns one of them."""
    for place in (folder.parent, folder):
        place.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        status = place.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise ConfigError(
                f"another user owns {place}; remove it, because the sockets of this home go there"
            )
        place.chmod(PRIVATE)


def means_of(paths: Paths, endpoints: Endpoints, services: Sequence[str]) -> tuple[Means, ...]:
    """Return the files and folders that a node's processes need, in the order of their
    restoration."""
    starts_none, logs = "no runner can start", "the log lines until then"
    folders = (
        Means("the folder of sockets", paths.runtime, "its processes cannot be reached"),
        Means(
            "the folder of counters",
            paths.runtime / COUNTERS,
            "requests that need a new metrics file fail",
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
        Means("the records file", paths.records, "no records are kept", "gateway", "its content"),
    )
    sockets = [
        Means(f"a socket of {owner}", Path(path), f"{owner} cannot be reached", owner)
        for owner, paths_of_owner in endpoints.services().items()
        for path in paths_of_owner
    ]
    locks = [
        Means(
            f"the lock of {service}", paths.runtime / f"{service}.role", "it may run twice", service
        )
        for service in services
    ]
    log_files = [
        Means(
            f"the log of {service}",
            paths.logs / file_of(service),
            "it cannot write its log",
            "supervisord",
            logs,
        )
        for service in ("supervisord", *services)
    ]
    return (*folders, *files, *sockets, *locks, *log_files)


class MeansKeeper:
    """Watches a node's files and folders: restores removed folders, and makes supervisord reopen
    its logs. A removed file is restored by the process that owns it. For use in one thread only."""

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
        """Restore removed folders. Return the files and folders that are missing now, and the
        folders restored in the last `REPORTED_S` seconds. Files of processes that are not in
        `running` are ignored."""
        mine = [means for means in self._means if means.owner in ("", "supervisord", *running)]
        gone = [means for means in mine if means in self._seen and not os.path.exists(means.path)]
        self._gone_at = dict.fromkeys(gone, now) | self._gone_at
        troubles = self._restore(gone, now)
        for means in self._means:
            if os.path.exists(means.path):
                self._seen.add(means)
                if self._gone_at.pop(means, None) is not None:
                    self._back_at[means] = now
            elif means not in gone:
                self._gone_at.pop(means, None)
        missing = [
            Removed(means, is_back=False, trouble=troubles.get(means, ""))
            for means, at in self._gone_at.items()
            if not means.owner or now - at >= OWNER_S
        ]
        back = [
            means for means, at in self._back_at.items() if means.lost and now - at < REPORTED_S
        ]
        folders = {means.path for means in back}
        restored = [means for means in back if means.path.parent not in folders]
        return (*missing, *(Removed(means, is_back=True) for means in restored))

    def _restore(self, gone: Sequence[Means], now: float) -> dict[Means, str]:
        """Restore these folders. Return the folders that could not be restored, each with the
        reason."""
        troubles: dict[Means, str] = {}
        for means in gone:
            if means.owner:
                continue
            try:
                if self._paths.runtime.parent in means.path.parents:
                    _make_shared(means.path)
                else:
                    means.path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            except (OSError, ConfigError) as error:
                troubles[means] = str(error)
        logs = self._paths.logs
        is_due = now - self._reopened_at >= REOPEN_LOGS_S and logs.is_dir()
        if is_due and any(logs in (means.path, means.path.parent) for means in gone):
            self._reopened_at = now
            self._reopen_logs()
        return troubles


def bundled_models() -> dict[str, Path]:
    """Return the folders of the models that come with shoal, by name; none in a package without
    them."""
    folder = Path(__file__).parent / "tiny"
    existing = next(
        (
            candidate
            for candidate in (folder, folder / "model")
            if (candidate / "config.json").exists()
        ),
        None,
    )
    return {} if existing is None else {BUNDLED_MODEL: existing}


def _runtime(home: Path) -> Path:
    root = Path("/tmp") if os.access("/tmp", os.W_OK) else Path(tempfile.gettempdir())
    cache = platformdirs.user_cache_path("shoal", appauthor=False)
    digest = hashlib.sha256(str(home).encode()).hexdigest()[:10]
    return runtime_root(sys.platform, root.resolve(), cache, os.getuid()) / digest


def runtime_root(system: str, temporary: Path, cache: Path, user: int) -> Path:
    """Return the folder above a user's runtime folders: on macOS the user's cache if socket paths
    stay short, else a folder in the system's temporary folder."""
    if system == "darwin" and len(os.fsencode(cache)) <= MAX_ROOT_BYTES:
        return cache
    return temporary / f"shoal-{user}"


def damaged_files(paths: Paths) -> tuple[str, ...]:
    """Return the paths of damaged state files of this node, which were renamed."""
    folders = (paths.journal, paths.state)
    return tuple(str(file) for folder in folders for file in sorted(folder.glob("*.damaged")))


def llama_server(chosen: str) -> tuple[str, ...]:
    """Return the command that starts llama-server: the program at `chosen` (the setting) if it is
    not empty, else the one on PATH, else the library of the extra. Empty if there is none, or if
    this system is not Linux (only there does the program certainly end with its runner). Nothing is
    run to find out."""
    if not sys.platform.startswith("linux"):
        return ()
    if chosen:
        path = str(Path(chosen).expanduser())
        return (path,) if os.access(path, os.X_OK) else ()
    if (program := shutil.which("llama-server")) is not None:
        return (program,)
    has_library = find_spec(LLAMA_LIBRARY) is not None
    return (sys.executable, "-P", "-m", LLAMA_PROGRAM) if has_library else ()
