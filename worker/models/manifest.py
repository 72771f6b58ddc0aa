"""The list of a model's files, and the checks of a list from another node.

Pure. A manifest lists only the files that a model is loaded from: weights, configuration,
tokenizer, template, card and adapters, but never code. A GGUF file, or its parts, belong to a model
without other weights. A path has at most two parts, three within `adapters/`, none hidden, so that
no manifest can name a file outside its model's folder. The digest covers names, sizes and contents.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence

from bus.models.gguf import weight_files
from bus.models.lora import CONFIG_FILE, FOLDER, WEIGHTS_FILES, is_adapter_name
from bus.wire.ids import ModelId
from bus.wire.messages.weights import HASH_BYTES, PIECE_BYTES, FileEntry, Manifest

SUFFIXES = (".safetensors", ".json", ".jinja", ".txt", ".model", ".tiktoken")
NAMED = ("card.toml",)
ADAPTER_FILES = (CONFIG_FILE, *WEIGHTS_FILES)
MAX_FILES = 4_096
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,199}")


def belongs(path: str) -> bool:
    """Return whether the file with this relative path belongs to a model, and can safely be written
    below a folder of shoal."""
    parts = path.split("/")
    if len(parts) == 3 and parts[0] == FOLDER:
        return parts[2] in ADAPTER_FILES and is_adapter_name(parts[1])
    if len(parts) > 2 or not all(_PART.fullmatch(part) for part in parts):
        return False
    return path in NAMED or parts[-1].endswith(SUFFIXES)


def is_plain(name: str) -> bool:
    """Return whether a file with this name can safely be written below a folder of shoal."""
    return _PART.fullmatch(name) is not None


def ggufs_of(paths: Collection[str]) -> tuple[str, ...]:
    """Return the GGUF file, or all its parts, from which a model with these files is loaded. Return
    nothing if there is no whole GGUF model, if there are safetensors, or if a name cannot safely be
    written on another node."""
    if any(path.endswith(".safetensors") for path in paths):
        return ()
    files = weight_files(path for path in paths if "/" not in path)
    return files if all(map(is_plain, files)) else ()


def piece_count(size_bytes: int) -> int:
    """Return the number of pieces of a file of this size."""
    return -(-size_bytes // PIECE_BYTES)


def piece_length(size_bytes: int, index: int) -> int:
    """Return the length in bytes of piece `index` of a file. All pieces are full except the
    last."""
    return min(PIECE_BYTES, size_bytes - index * PIECE_BYTES)


def piece_hash(entry: FileEntry, index: int) -> bytes:
    """Return the expected SHA-256 of piece `index`."""
    return entry.piece_hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES]


def digest_of(model: ModelId, files: Sequence[FileEntry]) -> str:
    """Return the digest of these files under this model's name: 64 hexadecimal digits."""
    digest = hashlib.sha256(f"{model}\n".encode())
    for entry in files:
        of_pieces = hashlib.sha256(entry.piece_hashes).hexdigest()
        line = f"{entry.path}\t{entry.size_bytes}\t{entry.sha256}\t{of_pieces}\n"
        digest.update(line.encode())
    return digest.hexdigest()


def manifest_of(model: ModelId, files: Sequence[FileEntry]) -> Manifest:
    ordered = tuple(sorted(files, key=lambda entry: entry.path))
    return Manifest(model=model, digest=digest_of(model, ordered), files=ordered)


def problem_of(manifest: Manifest, model: ModelId) -> str | None:
    """Return what is wrong with a manifest that another node sent for `model`; None if it is
    valid."""
    if manifest.model != model:
        return f"the manifest belongs to {manifest.model!r}"
    if len(manifest.files) > MAX_FILES:
        return f"the list has {len(manifest.files)} files; the limit is {MAX_FILES}"
    paths = [entry.path for entry in manifest.files]
    ggufs = ggufs_of(paths)
    for entry in manifest.files:
        if not belongs(entry.path) and entry.path not in ggufs:
            return f"the list of files has {entry.path[:80]!r}, which is not a model file"
        if len(entry.piece_hashes) != HASH_BYTES * piece_count(entry.size_bytes):
            return f"the hashes of {entry.path} do not match its size"
    has_weights = "config.json" in paths and any(p.endswith(".safetensors") for p in paths)
    if paths != sorted(paths):
        return "the manifest's files are not sorted"
    folded = [path.casefold() for path in paths]
    folders = {path[:at] for path in folded for at, char in enumerate(path) if char == "/"}
    if len(set(folded)) != len(folded) or folders & set(folded):
        return "two of its paths are the same on a case-insensitive disk"
    if not ggufs and not has_weights:
        return "the manifest has neither config.json with safetensors nor a complete GGUF model"
    if digest_of(model, manifest.files) != manifest.digest:
        return "the manifest's digest does not match the files"
    return None
