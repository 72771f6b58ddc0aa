"""Which files of a repository are taken, and whether what a hub says of them can be believed.

Pure. What runs a model is taken: the weights that MLX's loader reads, and JSON, templates and
vocabularies beside them; the modules of sentence-transformers lie one folder deeper. Nothing a hub
says is a path before it was found to be a plain one; each file has a hash to be held to.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from bus.wire.ids import ModelId
from bus.wire.messages.readings import PullRefusal
from worker.models.manifest import MAX_FILES, belongs
from worker.models.passed_over import unfit_folder, weights_among

MAX_LISTED = 20_000
MAX_NAME = 512
MAX_FILE_BYTES = 1 << 42
MAX_TEXT_BYTES = 1 << 28
"""Of a file that is no weights: a tokenizer's JSON has some 30 MB."""
SAFETENSORS = ".safetensors"
NOT_TAKEN = ("adapter", "card.toml")
"""How files begin that belong here and are left: a LoRA beside weights is not applied, and the card
is the operator's word."""
_MODULE = re.compile(r"[0-9]+_[A-Za-z]+")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_HEX = {"sha256": re.compile(r"[0-9a-f]{64}"), "git": re.compile(r"[0-9a-f]{40}")}


class PullFailed(Exception):
    """A pull that ends for a reason which the one who asked can act on. `again`: it may be tried
    again; `retry_after_s` says when, where the hub said so."""

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
    """A file as a hub lists it; what it does not say is None. `sha256` is that of a large file's
    content, `blob` Git's name of a small one."""

    name: str
    size_bytes: int | None
    sha256: str | None
    blob: str | None


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file that is to be had. `digest` is the hexadecimal SHA-256 of its content, or Git's SHA-1
    of it as a blob."""

    path: str
    size_bytes: int
    kind: Literal["sha256", "git"]
    digest: str


@dataclass(frozen=True, slots=True)
class HubListing:
    """The files of one commit of a repository that are taken, by path."""

    model: ModelId
    commit: str
    files: tuple[HubFile, ...]

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all of them."""
        return sum(one.size_bytes for one in self.files)

    @property
    def digest(self) -> str:
        """Return the name of exactly these files, 64 hexadecimal digits."""
        lines = (f"{one.path}\t{one.size_bytes}\t{one.digest}\n" for one in self.files)
        return hashlib.sha256(f"{self.model}\n{''.join(lines)}".encode()).hexdigest()


def listing_of(model: ModelId, commit: str, listed: Sequence[ListedFile]) -> HubListing:
    """Return what is taken of a repository. Raises PullFailed where nothing of it can be run, or
    where it is not to be believed."""
    if not _COMMIT.fullmatch(commit):
        raise _unbelievable(f"it names no commit of {model}, but {commit[:60]!r}")
    if len(listed) > MAX_LISTED:
        raise _unbelievable(f"it lists {len(listed):,} files, at most {MAX_LISTED:,} are looked at")
    for one in listed:
        _check_name(one.name)
    names = {one.name for one in listed}
    taken = [one for one in listed if _is_taken(one.name)]
    top = {name for name in names if "/" not in name}
    unfit = unfit_folder(top)
    if unfit is not None:
        raise PullFailed("unfit", f"{model} cannot be run here: {unfit.why}; {unfit.remedy}")
    if len(taken) > MAX_FILES:
        raise _unbelievable(
            f"it lists {len(taken):,} files of a model, at most {MAX_FILES:,} are taken"
        )
    files = tuple(sorted(map(_file, taken), key=lambda one: one.path))
    _check_distinct(one.path for one in files)
    return HubListing(model, commit, files)


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
        raise _unbelievable(f"it lists a file named {name[:80]!r}")
    if any(part in ("", ".", "..") for part in parts):
        raise _unbelievable(f"it lists a file that leads out of its folder: {name[:80]!r}")


def _check_distinct(paths: Iterable[str]) -> None:
    """Raise PullFailed where two paths are one on a disk that takes A for a."""
    seen: set[str] = set()
    for path in paths:
        folded = path.casefold()
        if folded in seen:
            raise _unbelievable(f"it lists {path[:80]!r} twice")
        seen.add(folded)
    if seen & {path.partition("/")[0] for path in seen if "/" in path}:
        raise _unbelievable("it lists a file and a folder of one name")


def _file(listed: ListedFile) -> HubFile:
    name, size = listed.name, listed.size_bytes
    most = MAX_FILE_BYTES if name.endswith(SAFETENSORS) else MAX_TEXT_BYTES
    if size is None or not 0 <= size <= most:
        raise _unbelievable(f"it says that {name} has {size} bytes")
    kind: Literal["sha256", "git"] = "git" if listed.sha256 is None else "sha256"
    digest = listed.blob if listed.sha256 is None else listed.sha256
    if digest is None or not _HEX[kind].fullmatch(digest):
        raise _unbelievable(f"it tells no hash of {name} by which the file could be checked")
    return HubFile(name, size, kind, digest)


def _unbelievable(what: str) -> PullFailed:
    return PullFailed("changed", f"the hub's list of files is refused: {what}")
