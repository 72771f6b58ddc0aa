"""Talks to the disk: the folders of a home, one table for the whole suite.

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
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from bus.wire.errors import ConfigError

HOME_VARIABLE = "SHOAL_HOME"
PRIVATE = 0o700
MAX_ROOT_BYTES = 65
"""Of the folder of runtime folders: a home's hash and a socket's name come behind it."""
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
    shared = (paths.runtime.parent, paths.kernels, paths.measured, paths.preloads)
    for folder in (*shared, paths.runtime):
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise ConfigError(
                f"{folder} belongs to somebody else; remove it, for sockets of this home lie there"
            )
        folder.chmod(PRIVATE)
    for folder in (paths.config, paths.data, paths.models, paths.state, paths.logs, paths.run):
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)


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
