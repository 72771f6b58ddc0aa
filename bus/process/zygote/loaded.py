"""Talks to the disk: imports the services' shared code, and checks whether that code has changed on
the disk since.

The time, size or inode of a file reveals a change. Every file of our packages is checked, because a
process reports the fingerprint of all of them. The loaded files of other distributions are checked,
too, and the folders in which pip installs. The imports start no thread and open no file or socket
that a fork would share; tests ensure that.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import os
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from bus.process.installation import PACKAGES, ROOT, SUFFIXES, running_code
from bus.wire.messages.wire import build_validators

Mark = tuple[int, int, int]
"""Modification time in ns, size, inode."""


@dataclass(frozen=True, slots=True)
class LoadedCode:
    """The packages that may be forked. `tree` and `others`: the marks of our files and of all
    others, by which a change is recognised. `trouble`: why no package may be forked."""

    packages: frozenset[str] = frozenset()
    root: Path = ROOT
    tree: Mapping[str, Mark] = field(default_factory=dict[str, Mark])
    others: Mapping[str, Mark] = field(default_factory=dict[str, Mark])
    trouble: str = ""
    _others: str = field(init=False)
    _digest: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_others", "\0".join(self.others))
        object.__setattr__(self, "_digest", _digest(chain(self.tree.items(), self.others.items())))

    def changed(self) -> str:
        """Return a file that has changed since it was loaded; empty if there is none. Takes some
        milliseconds.

        A forked child compares a digest first, because reading thousands of marks would copy 5 MiB
        of pages that all services share.
        """
        others = filter(None, self._others.split("\0"))
        if _digest(chain(tree_marks(self.root).items(), _marks(others))) == self._digest:
            return ""
        now = tree_marks(self.root)
        differs = (path for path in {**self.tree, **now} if self.tree.get(path) != now.get(path))
        others = (path for path, mark in self.others.items() if _mark(path) != mark)
        return next(differs, "") or next(others, "")


def load(
    packages: Iterable[str], *, libraries: Iterable[str] = (), root: Path = ROOT
) -> LoadedCode:
    """Import `__main__` of each package, and the `libraries` that all services import later. Never
    raises: if an import fails, the result says that nothing may be forked."""
    wanted = tuple(packages)
    began_ns = time.time_ns()
    gc.disable()
    try:
        for package in wanted:
            importlib.import_module(f"{package}.__main__")
        for library in libraries:
            importlib.import_module(library)
        running_code()
        build_validators()
    except (Exception, SystemExit) as error:
        return LoadedCode(trouble=f"{type(error).__name__}: {error}")
    finally:
        for package in wanted:
            _unload_main(package)
        gc.enable()
    tree, others = tree_marks(root), dict(_marks(_other_files()))
    for path in (*tree, *others):
        if _written_since(path, began_ns):
            return LoadedCode(trouble=f"{path} was written while it was imported")
    gc.collect()
    gc.freeze()
    return LoadedCode(frozenset(wanted), root, tree, others)


def tree_marks(root: Path) -> dict[str, Mark]:
    """Return the marks of the files of our packages in a folder."""
    marks: dict[str, Mark] = {}
    folders = [str(root / package) for package in PACKAGES]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:
            continue  # its files then count as missing
        for entry in entries:
            if entry.name.endswith(SUFFIXES):
                marks.update(_marks([entry.path]))
            elif entry.name != "__pycache__" and entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
    return marks


def _unload_main(package: str) -> None:
    """Unload the package's `__main__`, so that `python -m` can import and run it later."""
    name = f"{package}.__main__"
    if sys.modules.pop(name, None) is not None and package in sys.modules:
        vars(sys.modules[package]).pop("__main__", None)


def _other_files() -> Iterator[str]:
    """Yield the files of all other loaded modules, and the folders in which distributions are
    installed."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            yield file
    yield sys.executable
    for kind in ("purelib", "platlib"):
        yield sysconfig.get_path(kind)


def _marks(paths: Iterable[str]) -> Iterator[tuple[str, Mark]]:
    for path in paths:
        mark = _mark(path)
        if mark is not None:
            yield path, mark


def _digest(marks: Iterable[tuple[str, Mark]]) -> bytes:
    """Return a digest of files and their marks, in any order."""
    total = 0
    for path, mark in marks:
        line = hashlib.blake2b(f"{path}\0{mark}".encode(), digest_size=16)
        total += int.from_bytes(line.digest(), "big")
    return (total % (1 << 128)).to_bytes(16, "big")


def _mark(path: str) -> Mark | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _written_since(path: str, at_ns: int) -> bool:
    """Return whether a file may have been written after `at_ns`, by its ctime, which can't be set
    back."""
    try:
        return os.stat(path).st_ctime_ns >= at_ns
    except OSError:
        return True
