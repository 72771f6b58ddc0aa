"""Talks to the disk: changes `shoal.toml`, one change at a time, and never writes a file that a
node would refuse."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
import tomllib
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from bus.wire.errors import ConfigError, SettingsUnwritable
from conf.changing.described import commented
from conf.changing.text import changed, check_known, typed
from conf.keys import flat
from conf.paths import PRIVATE, Paths
from conf.sections import hash_key, is_hash, words
from conf.settings import DEFAULTS_FILE, Settings, settings_of_file

OWNERS_ALONE = 0o600


def defaults() -> Mapping[str, Any]:
    """Return the default value of every setting, by dotted key."""
    return flat(tomllib.loads(DEFAULTS_FILE.read_text()))


def _path_of(paths: Paths) -> Path:
    """Return the path of `shoal.toml`, with links resolved."""
    return paths.config_file.resolve()


def text_of(paths: Paths) -> str | None:
    """Return the text of `shoal.toml`; None if there is no file. Raises ConfigError."""
    try:
        return _path_of(paths).read_text()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{paths.config_file}: {error}") from error


def write_first(paths: Paths) -> bool:
    """Write a `shoal.toml` with every setting commented out if there is none; return whether it was
    written. A failure to write is no fault, because a node needs no file."""
    try:
        with _lock(paths):
            if paths.config_file.exists() or paths.config_file.is_symlink():
                return False
            _write(_path_of(paths), commented(DEFAULTS_FILE.read_text()))
    except ConfigError:
        return False
    return True


def change(paths: Paths, put: Mapping[str, Any], drop: Sequence[str]) -> None:
    """Set and unset settings by dotted key. Values are JSON values or users' text. API keys are
    written as hashes. Raises ConfigError, which names the setting and its accepted values; then
    nothing is written."""
    standard = defaults()
    for key in (*put, *drop):
        check_known(key, standard)
    values = {key: _hash_keys(key, typed(key, value, standard[key])) for key, value in put.items()}
    with _lock(paths):
        before = text_of(paths)
        text = before if before is not None else commented(DEFAULTS_FILE.read_text())
        try:
            after = changed(text, values, drop, standard)
        except ConfigError as error:
            raise ConfigError(f"{paths.config_file}: {error}") from None
        _take(paths, after)


def replace(paths: Paths, text: str, before: str) -> None:
    """Replace the whole file, whose text was `before`. Raises ConfigError if a node would refuse
    the new text, or if the file has changed in the meantime."""
    with _lock(paths):
        if (text_of(paths) or "") != before:
            raise ConfigError(
                f"another program changed {paths.config_file} in the meantime; try again"
            )
        _take(paths, text)


def check(paths: Paths, text: str) -> None:
    """Raise ConfigError if a node would refuse a text as `shoal.toml`. The error names the setting
    and its line."""
    with tempfile.TemporaryDirectory(prefix="shoal-settings-") as folder:
        file = Path(folder) / "shoal.toml"
        file.write_text(text)
        try:
            settings_of_file(paths, file, alone=True)
        except ConfigError as error:
            message = (
                str(error).replace(f"file {file}", "shoal.toml").replace(str(file), "shoal.toml")
            )
            raise ConfigError(message) from None


def differing(paths: Paths, now: Settings) -> Mapping[str, Any]:
    """Return the settings that were changed since the node started, by dotted key, each with its
    value at the start. Empty if no node is up, or if its first settings cannot be read."""
    if not paths.up_file.exists():
        return {}
    try:
        ran = settings_of_file(paths, paths.up_config, alone=False)
    except ConfigError:
        return {}
    wanted = {key: value for key, value, _ in now.rows()}
    return {key: value for key, value, _ in ran.rows() if value != wanted.get(key)}


def readable_key(path: Path) -> str | None:
    """Return a warning if a settings file holds an API key in plain text and other users may read
    it, else None. Raises ConfigError."""
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    keys = words(table.get("api_keys", ()))
    is_plain = isinstance(keys, list | tuple) and not all(
        isinstance(key, str) and is_hash(key) for key in cast(list[Any], keys)
    )
    if not is_plain or not path.stat().st_mode & 0o077:
        return None
    return f"{path} contains an API key in plain text, and other users can read it"


def _hash_keys(name: str, value: Any) -> Any:
    if name != "api_keys":
        return value
    return [key if is_hash(key) else hash_key(key) for key in cast(list[str], value)]


def _take(paths: Paths, text: str) -> None:
    check(paths, text)
    _write(_path_of(paths), text)


def _write(file: Path, text: str) -> None:
    """Replace a file's content atomically; the file keeps its permissions. Raises ConfigError."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        mode = file.stat().st_mode & 0o777 if file.exists() else OWNERS_ALONE
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as out:
            os.fchmod(out.fileno(), mode)
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(file)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise _unwritable(file, error) from error


def _unwritable(path: Path, error: OSError) -> SettingsUnwritable:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    then = "make room on its disk" if is_full else "check the file's permissions and the disk"
    why = error.strerror or str(error)
    return SettingsUnwritable(f"{path} cannot be written ({why}): {then}", is_full=is_full)


@contextlib.contextmanager
def _lock(paths: Paths) -> Generator[None]:
    """Hold a lock on the folder of settings within the context; create the folder if it is missing.
    Raises ConfigError."""
    try:
        paths.config.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        folder = os.open(paths.config, os.O_RDONLY)
    except OSError as error:
        raise _unwritable(paths.config, error) from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
