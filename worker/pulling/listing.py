"""Choose the needed files of a repository, and validate a hub's list.

Pure. MLX's loader needs the weights, with the JSON files, templates and vocabularies beside them,
and the modules of sentence-transformers one folder deeper. An engine for GGUF needs the files of
one quantisation (`worker.pulling.choosing`), which may lie in a folder. Paths of a hub are only
used after they were found to be plain; each file has a hash to verify.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bus.models.gguf import is_gguf, repository_of
from bus.wire.ids import ModelId
from bus.wire.messages.readings import PullRefusal
from worker.models.manifest import MAX_FILES, belongs
from worker.models.passed_over import CONFIG, ggufs_among, unfit_folder, weights_among
from worker.pulling.choosing import NoChoice, choose_gguf

MAX_LISTED = 20_000
MAX_NAME = 512
MAX_FILE_BYTES = 1 << 42
MAX_TEXT_BYTES = 1 << 28
"""Limit of files that are not weights: a tokenizer's JSON has some 30 MB."""
SAFETENSORS = ".safetensors"
NOT_TAKEN = ("adapter", "card.toml")
"""Prefixes of files that are skipped: a LoRA beside weights is not applied, and the card is the
operator's."""
BESIDE_GGUF = (CONFIG, "tokenizer.json")
"""Files that are pulled together with a GGUF file, if the repository has them."""
_MODULE = re.compile(r"[0-9]+_[A-Za-z]+")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_HEX = {"sha256": re.compile(r"[0-9a-f]{64}"), "git": re.compile(r"[0-9a-f]{40}")}


class PullFailed(Exception):
    """A pull failed for a reason on which the client can act. `again`: the pull may be
    retried. `retry_after_s`: the pause before the retry, if the hub asked for one."""

    def __init__(
        self,
        reason: PullRefusal,
        message: str,
        *,
        again: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason: PullRefusal = reason
        self.message = message
        self.again = again
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file in a hub's list; missing values are None. `sha256` is the hash of a large file's
    content, `blob` Git's name of a small one."""

    name: str
    size_bytes: int | None
    sha256: str | None
    blob: str | None


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file to download. `digest` is the hexadecimal SHA-256 of its content, or Git's SHA-1 of it
    as a blob. `source`: its path in the repository, where that differs from `path`."""

    path: str
    size_bytes: int
    kind: Literal["sha256", "git"]
    digest: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class HubListing:
    """The needed files of one commit of a repository, by path. `choice`: which quantisation these
    are, and why; empty for models that are not in GGUF."""

    model: ModelId
    commit: str
    files: tuple[HubFile, ...]
    choice: str = ""

    @property
    def repository(self) -> ModelId:
        return repository_of(self.model)[0]

    @property
    def ggufs(self) -> tuple[HubFile, ...]:
        """Return the GGUF file, or its parts in order; nothing for other models."""
        names = ggufs_among([file.path for file in self.files])
        return tuple(file for file in self.files if file.path in names)

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def digest(self) -> str:
        """Return the digest of exactly these files, 64 hexadecimal digits."""
        lines = (f"{file.path}\t{file.size_bytes}\t{file.digest}\n" for file in self.files)
        return hashlib.sha256(f"{self.model}\n{''.join(lines)}".encode()).hexdigest()


def listing_of(
    model: ModelId, commit: str, listed: Sequence[ListedFile], memory_bytes: int = 0
) -> HubListing:
    """Return the needed files of a repository. The node's memory (0: no limit) chooses among GGUF
    files if the model's name does not. Raises PullFailed if it cannot run here, or if the list is
    invalid."""
    if not _COMMIT.fullmatch(commit):
        raise _unbelievable(f"{commit[:60]!r} is not a commit hash of {model}")
    if len(listed) > MAX_LISTED:
        raise _unbelievable(f"the list has {len(listed):,} files; the limit is {MAX_LISTED:,}")
    for file in listed:
        _check_name(file.name)
    names = {file.name for file in listed}
    top = {name for name in names if "/" not in name}
    has_mlx = any(not is_gguf(name) for name in weights_among(top))
    if repository_of(model)[1] or (not has_mlx and any(map(is_gguf, names))):
        return _gguf_listing(model, commit, listed, memory_bytes)
    taken = [file for file in listed if _is_taken(file.name)]
    unfit = unfit_folder(top)
    if unfit is not None:
        raise PullFailed("unfit", f"{model} cannot be run here: {unfit.why}; {unfit.remedy}")
    if len(taken) > MAX_FILES:
        raise _unbelievable(f"the list has {len(taken):,} model files; the limit is {MAX_FILES:,}")
    files = tuple(sorted(map(_file, taken), key=lambda file: file.path))
    _check_distinct(file.path for file in files)
    return HubListing(model, commit, files)


def _gguf_listing(
    model: ModelId, commit: str, listed: Sequence[ListedFile], memory_bytes: int
) -> HubListing:
    """Return the files of one quantisation, and the small files beside it. Raises PullFailed."""
    sizes = {file.name: file.size_bytes or 0 for file in listed}
    choice = choose_gguf(model, sizes, memory_bytes)
    if isinstance(choice, NoChoice):
        raise PullFailed(choice.reason, choice.text)
    sources = {path.rpartition("/")[2]: path for path in choice.offer.paths}
    by_name = {file.name: file for file in listed}
    files = [_file(by_name[name]) for name in BESIDE_GGUF if name in by_name]
    for name, source in sources.items():
        file = replace(_file(by_name[source]), path=name)
        files.append(file if source == name else replace(file, source=source))
    files.sort(key=lambda file: file.path)
    _check_distinct(file.path for file in files)
    return HubListing(model, commit, tuple(files), choice.why)


def _is_taken(name: str) -> bool:
    folder, _, last = name.rpartition("/")
    if (
        not belongs(name)
        or last.startswith(NOT_TAKEN)
        or (folder and not _MODULE.fullmatch(folder))
    ):
        return False
    return not last.endswith(SAFETENSORS) or bool(weights_among([last]))


def _check_name(name: str) -> None:
    parts = name.split("/")
    if not name or len(name) > MAX_NAME or "\\" in name or not name.isprintable():
        raise _unbelievable(f"the list has a file named {name[:80]!r}")
    if any(part in ("", ".", "..") for part in parts):
        raise _unbelievable(f"the list has a file outside its folder: {name[:80]!r}")


def _check_distinct(paths: Iterable[str]) -> None:
    """Raise PullFailed if two paths are the same on a case-insensitive disk."""
    seen: set[str] = set()
    for path in paths:
        folded = path.casefold()
        if folded in seen:
            raise _unbelievable(f"the list has {path[:80]!r} twice")
        seen.add(folded)
    if seen & {path.partition("/")[0] for path in seen if "/" in path}:
        raise _unbelievable("the list has a file and a folder with the same name")


def _file(listed: ListedFile) -> HubFile:
    name, size = listed.name, listed.size_bytes
    is_large = name.endswith(SAFETENSORS) or is_gguf(name)
    most = MAX_FILE_BYTES if is_large else MAX_TEXT_BYTES
    if size is None or not 0 <= size <= most:
        raise _unbelievable(f"the list has {name} with a size of {size} bytes")
    kind: Literal["sha256", "git"] = "git" if listed.sha256 is None else "sha256"
    digest = listed.blob if listed.sha256 is None else listed.sha256
    if digest is None or not _HEX[kind].fullmatch(digest):
        raise _unbelievable(f"the list has no hash to verify {name}")
    return HubFile(name, size, kind, digest)


def _unbelievable(what: str) -> PullFailed:
    return PullFailed("changed", f"the hub's list of files is invalid: {what}")
