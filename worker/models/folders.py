"""Talks to the disk: what lies where models do, by name, without opening a file.

A folder is listed once a look. `<folder>/<name>` is a model, or `<name>` is an owner whose models
lie one deeper; what is hidden is passed by. The Hugging Face cache keeps snapshots of all
kinds: only those with weights are meant as models.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from worker.models.passed_over import (
    CONFIG,
    Unfit,
    has_weights,
    no_folder,
    too_deep,
    unfit_file,
    unfit_folder,
    unreadable,
)

Entries = Mapping[str, "os.DirEntry[str]"]


@dataclass(frozen=True, slots=True)
class Found:
    """Something that lies where models do. `entries` are its files and folders; `unfit` says why
    it is no model, as far as names tell. `cached`: it lies in a store of others."""

    name: str
    path: Path
    entries: Entries
    unfit: Unfit | None = None
    bundled: bool = False
    cached: bool = False


def folder_of(name: str, folder: Path, *, bundled: bool = False) -> Found:
    """Return a folder that is known to be a model's."""
    try:
        return Found(name, folder, listed(folder), bundled=bundled)
    except OSError as error:
        return Found(name, folder, {}, unreadable(error), bundled=bundled)


def lying_in(folder: Path) -> Iterator[Found]:
    """Yield what lies in a folder of models, by name. A folder that is not there has nothing."""
    try:
        entries = listed(folder)
    except OSError:
        return
    for name, entry in entries.items():
        if name.startswith("."):
            continue
        if entry.is_dir():
            yield from _models_at(name, Path(entry.path))
        elif not os.path.exists(entry.path):
            yield Found(name, Path(entry.path), {}, no_folder())
        else:
            yield Found(name, Path(entry.path), {}, unfit_file(name))


def _models_at(name: str, path: Path) -> Iterator[Found]:
    """Yield the model in this folder, or those of the owner that it is."""
    try:
        entries = listed(path)
    except OSError as error:
        yield Found(name, path, {}, unreadable(error))
        return
    below = {n: e for n, e in entries.items() if e.is_dir() and not n.startswith(".")}
    files = entries.keys() - below.keys()
    if CONFIG in files or not below or has_weights(files):
        yield Found(name, path, entries, unfit_folder(files))
    if CONFIG not in files:
        for inner, entry in below.items():
            yield _owned(f"{name}/{inner}", Path(entry.path))


def _owned(name: str, path: Path) -> Found:
    try:
        entries = listed(path)
    except OSError as error:
        return Found(name, path, {}, unreadable(error))
    files = {n for n, entry in entries.items() if not entry.is_dir()}
    unfit = unfit_folder(files)
    if unfit is not None and CONFIG not in files and not has_weights(files):
        deeper = (n for n in entries if os.path.exists(path / n / CONFIG))
        unfit = next((too_deep(inner) for inner in deeper), unfit)
    return Found(name, path, entries, unfit)


def snapshots_in(hub: Path) -> Iterator[Found]:
    """Yield the models in a Hugging Face cache."""
    with contextlib.suppress(OSError):
        for repository in listed(hub):
            kind, _, rest = repository.partition("--")
            if kind == "models" and rest:
                found = _snapshot(rest.replace("--", "/", 1), hub / repository)
                if found is not None:
                    yield found


def _snapshot(name: str, repository: Path) -> Found | None:
    """Return the snapshot that `refs/main` names, else the newest; one with a configuration goes
    before one without. None where there is none with weights."""
    paths: list[Path] = []
    with contextlib.suppress(OSError, ValueError):
        paths = [Path(e.path) for e in listed(repository / "snapshots").values() if e.is_dir()]
        paths.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        named = (repository / "refs" / "main").read_text().strip()
        paths.sort(key=lambda path: path.name != named)
    paths.sort(key=lambda path: not (path / CONFIG).exists())
    for path in paths[:1]:
        with contextlib.suppress(OSError):
            entries = listed(path)
            if has_weights(entries):
                return Found(name, path, entries, unfit_folder(entries.keys()), cached=True)
    return None


def listed(folder: Path) -> Entries:
    """Return what is in a folder, by name. Raises OSError."""
    with os.scandir(folder) as entries:
        return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name)}
