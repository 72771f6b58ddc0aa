"""The files of a capture: the bounded files of one node, and one archive of all nodes.

Pure. A capture is a set of diagnostics of the cluster. `missing` names the files that could not be
read or that would exceed the bounds. A capture from another node must respect the same bounds, and
its file names must stay within its folder.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from bus.wire.codec import pack, unpack
from bus.wire.errors import BadMessage

FILE_BYTES = 4 << 20
NODE_BYTES = 12 << 20
"""Most bytes of all files of one node, before compression."""
NODE_FILES = 1024
TEXT_CHARACTERS = 500
"""Longest reason, in characters."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*(/[A-Za-z0-9_][A-Za-z0-9_.:-]*)*")
_OTHER = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Missing:
    """A part that a capture lacks, and why."""

    what: str
    why: str


@dataclass(slots=True)
class NodeCapture:
    """One node's files by name, and the missing parts. `stopped` names processes that the system
    has halted (SIGSTOP, a debugger)."""

    node: str
    name: str
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    missing: list[Missing] = field(default_factory=list[Missing])
    stopped: list[str] = field(default_factory=list[str])

    def add(self, name: str, content: bytes) -> None:
        """Add a file. A file that is too long is truncated. If the bytes of all files would exceed
        the bound, the file is left out and listed as missing."""
        if len(content) > FILE_BYTES:
            self.lack(name, f"truncated to {FILE_BYTES} of {len(content)} bytes")
            content = content[:FILE_BYTES]
        size_bytes = sum(map(len, self.files.values())) + len(content)
        if size_bytes > NODE_BYTES or len(self.files) >= NODE_FILES:
            self.lack(name, "left out: the node's capture reached its limit")
            return
        self.files[name] = content

    def lack(self, what: str, why: str) -> None:
        """Record that a part is missing, and why."""
        self.missing.append(Missing(what, why[:TEXT_CHARACTERS]))


@dataclass(frozen=True, slots=True)
class NotReached:
    """A node without a capture. `why` is `down`, `silent` or `refused`; `message` explains it."""

    node: str
    name: str
    why: str
    message: str


Captured = NodeCapture | NotReached


def packed_capture(capture: NodeCapture) -> bytes:
    """Return a node's capture as compressed bytes for the network."""
    fields = {
        "node": capture.node,
        "name": capture.name,
        "files": capture.files,
        "missing": [[part.what, part.why] for part in capture.missing],
        "stopped": capture.stopped,
    }
    return zlib.compress(pack(fields), 6)


def capture_of(data: bytes) -> NodeCapture:
    """Read another node's `packed_capture`. Raises BadMessage if the bytes are not a capture or
    exceed its bounds."""
    most_bytes = 2 * NODE_BYTES
    reading = zlib.decompressobj()
    try:
        whole = reading.decompress(data, most_bytes)
    except (zlib.error, TypeError) as error:
        raise BadMessage(f"no capture: {error}") from error
    if not reading.eof:
        raise BadMessage(f"the capture is larger than {most_bytes} bytes, or truncated")
    fields = unpack(whole, limit_bytes=most_bytes)
    try:
        capture = NodeCapture(str(fields["node"]), str(fields["name"]))
        for what, why in fields["missing"][:NODE_FILES]:
            capture.lack(str(what), str(why))
        capture.stopped = [str(process) for process in fields["stopped"][:NODE_FILES]]
        for name, content in cast(Mapping[Any, Any], fields["files"]).items():
            if not isinstance(content, bytes) or not _NAME.fullmatch(str(name)):
                raise BadMessage(f"the capture has an invalid file {str(name)[:80]!r}")
            capture.add(str(name), content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadMessage(f"no capture: {type(error).__name__}: {error}") from error
    return capture


def archive_of(captured: Sequence[Captured], head: Mapping[str, Any], made_at_s: float) -> bytes:
    """Return a tar.gz with a folder for each node that has a capture, and `manifest.json`: `head`,
    then the files and missing parts of each node."""
    folders = _folders([capture for capture in captured if isinstance(capture, NodeCapture)])
    manifest = {**head, "nodes": [_manifest_entry(capture, folders) for capture in captured]}
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz", compresslevel=6) as tar:
        _put(tar, "manifest.json", json_text(manifest), made_at_s)
        for capture in captured:
            if isinstance(capture, NodeCapture):
                for name, content in sorted(capture.files.items()):
                    _put(tar, f"{folders[capture.node]}/{name}", content, made_at_s)
    return whole.getvalue()


def json_text(value: Any) -> bytes:
    """Return a value as indented JSON."""
    return json.dumps(value, indent=2, default=str).encode()


def file_name(process: str) -> str:
    """Return the name of a process (`runner:00`, `gateway/1`) in a form for file names."""
    return process.replace(":", "-").replace("/", "-")


def _manifest_entry(capture: Captured, folders: Mapping[str, str]) -> dict[str, Any]:
    if isinstance(capture, NotReached):
        entry = {"node": capture.node, "name": capture.name, "reached": False}
        return {**entry, "why": capture.why, "message": capture.message}
    return {
        "node": capture.node,
        "name": capture.name,
        "reached": True,
        "folder": folders[capture.node],
        "files": sorted(capture.files),
        "stopped": capture.stopped,
        "missing": [asdict(part) for part in capture.missing],
    }


def _folders(captures: Sequence[NodeCapture]) -> dict[str, str]:
    """Return a folder for each node: its name, and also its id if several nodes have that name."""
    names = [_plain(capture.name) for capture in captures]
    return {
        capture.node: name if names.count(name) == 1 else f"{name}-{_plain(capture.node)}"
        for capture, name in zip(captures, names, strict=True)
    }


def _plain(text: str) -> str:
    return _OTHER.sub("-", text).strip(".-")[:64] or "node"


def _put(tar: tarfile.TarFile, name: str, content: bytes, made_at_s: float) -> None:
    entry = tarfile.TarInfo(f"shoal-capture/{name}")
    entry.size, entry.mtime, entry.mode = len(content), int(made_at_s), 0o600
    tar.addfile(entry, io.BytesIO(content))
