"""Talks to the disk: lists the contents of model folders by name, without opening files.

A folder is listed once per scan. `<folder>/<name>` is a model, or `<name>` is an owner (a Hugging
Face organisation or user) whose models are one level deeper. Hidden entries are skipped. The
Hugging Face cache has snapshots of all kinds: only those with weights count as models.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bus.models.lora import FOLDER as ADAPTERS_FOLDER
from worker.models.passed_over import (
    CONFIG,
    Unfit,
    ggufs_among,
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
    """An entry of a model folder. `entries` are its files and folders; `unfit` says why it is not a
    model, judged by names. `cached`: it is in another tool's cache."""

    name: str
    path: Path
    entries: Entries
    unfit: Unfit | None = None
    bundled: bool = False
    cached: bool = False


def folder_of(name: str, folder: Path, *, bundled: bool = False) -> Found:
    """Return the entry of a folder that certainly contains a model, named `name`."""
    try:
        return Found(name, folder, listed(folder), bundled=bundled)
    except OSError as error:
        return Found(name, folder, {}, unreadable(error), bundled=bundled)


def lying_in(folder: Path) -> Iterator[Found]:
    """Yield the entries of a model folder, by name; nothing if it does not exist."""
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
    """Yield the model in this folder. If the folder is an owner's (a Hugging Face organisation or
    user, as in `owner/model`), yield the models one level below it."""
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
        if ggufs_among(files):
            below.pop(ADAPTERS_FOLDER, None)
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
                snapshot = _snapshot(rest.replace("--", "/", 1), hub / repository)
                if snapshot is not None:
                    yield snapshot


def _snapshot(name: str, repository: Path) -> Found | None:
    """Return the snapshot of a repository that `refs/main` names, or else the newest. Snapshots
    with a configuration are preferred. Return None if none has weights."""
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
    """Return the contents of a folder, by name. Raises OSError."""
    with os.scandir(folder) as entries:
        return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name)}
