"""The files of a capture: what one node gathers, within bounds, and one archive of all nodes.

Pure. What finds no room is named in `missing`, as is what could not be had. What another node sent
is held to the same bounds, and to names that stay within its folder.
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
"""Of one node's files together, before they are compressed."""
NODE_FILES = 1024
TEXT_CHARACTERS = 500
"""Of a reason."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*(/[A-Za-z0-9_][A-Za-z0-9_.:-]*)*")
_OTHER = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that a capture lacks, and why."""

    what: str
    why: str


@dataclass(slots=True)
class NodeCapture:
    """What one node gathers: its files by name, and what is missing. `stopped` are processes that
    the system has halted (SIGSTOP, a debugger)."""

    node: str
    name: str
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    missing: list[Missing] = field(default_factory=list[Missing])
    stopped: list[str] = field(default_factory=list[str])

    def add(self, name: str, content: bytes) -> None:
        """Add a file; the end is cut off one that is too long, and one without room is left out."""
        if len(content) > FILE_BYTES:
            self.lack(name, f"only the first {FILE_BYTES} of its {len(content)} bytes are there")
            content = content[:FILE_BYTES]
        size_bytes = sum(map(len, self.files.values())) + len(content)
        if size_bytes > NODE_BYTES or len(self.files) >= NODE_FILES:
            self.lack(name, "it does not fit into the node's capture")
            return
        self.files[name] = content

    def lack(self, what: str, why: str) -> None:
        """Name what is missing."""
        self.missing.append(Missing(what, why[:TEXT_CHARACTERS]))


@dataclass(frozen=True, slots=True)
class NotReached:
    """A node of which there is no capture: how it stands (`down`, `silent`, `refused`), and why."""

    node: str
    name: str
    why: str
    message: str


Captured = NodeCapture | NotReached


def packed_capture(capture: NodeCapture) -> bytes:
    """Return a node's capture as bytes that travel."""
    found = {
        "node": capture.node,
        "name": capture.name,
        "files": capture.files,
        "missing": [[one.what, one.why] for one in capture.missing],
        "stopped": capture.stopped,
    }
    return zlib.compress(pack(found), 6)


def capture_of(data: bytes) -> NodeCapture:
    """Read what `packed_capture` made, of another node. Raises BadMessage for what is none, or is
    larger than a capture may be."""
    most_bytes = 2 * NODE_BYTES
    reading = zlib.decompressobj()
    try:
        whole = reading.decompress(data, most_bytes)
    except (zlib.error, TypeError) as error:
        raise BadMessage(f"no capture: {error}") from error
    if not reading.eof:
        raise BadMessage(f"the capture is larger than {most_bytes} bytes, or truncated")
    told = unpack(whole, limit_bytes=most_bytes)
    try:
        capture = NodeCapture(str(told["node"]), str(told["name"]))
        for what, why in told["missing"][:NODE_FILES]:
            capture.lack(str(what), str(why))
        capture.stopped = [str(one) for one in told["stopped"][:NODE_FILES]]
        for name, content in cast(Mapping[Any, Any], told["files"]).items():
            if not isinstance(content, bytes) or not _NAME.fullmatch(str(name)):
                raise BadMessage(f"the capture has a file {str(name)[:80]!r}")
            capture.add(str(name), content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadMessage(f"no capture: {type(error).__name__}: {error}") from error
    return capture


def archive_of(captured: Sequence[Captured], head: Mapping[str, Any], made_at_s: float) -> bytes:
    """Return a tar.gz with a folder for each node that was reached, and `manifest.json`: `head`,
    then what there is of each node, and what is missing."""
    folders = _folders([one for one in captured if isinstance(one, NodeCapture)])
    manifest = {**head, "nodes": [_told(one, folders) for one in captured]}
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz", compresslevel=6) as tar:
        _put(tar, "manifest.json", json_text(manifest), made_at_s)
        for one in captured:
            if isinstance(one, NodeCapture):
                for name, content in sorted(one.files.items()):
                    _put(tar, f"{folders[one.node]}/{name}", content, made_at_s)
    return whole.getvalue()


def json_text(value: Any) -> bytes:
    """Return a value as JSON that people read."""
    return json.dumps(value, indent=2, default=str).encode()


def file_name(process: str) -> str:
    """Return the name of a process (`runner:00`, `gateway/1`) as part of a file's."""
    return process.replace(":", "-").replace("/", "-")


def _told(one: Captured, folders: Mapping[str, str]) -> dict[str, Any]:
    if isinstance(one, NotReached):
        said = {"node": one.node, "name": one.name, "reached": False}
        return {**said, "why": one.why, "message": one.message}
    return {
        "node": one.node,
        "name": one.name,
        "reached": True,
        "folder": folders[one.node],
        "files": sorted(one.files),
        "stopped": one.stopped,
        "missing": [asdict(each) for each in one.missing],
    }


def _folders(captures: Sequence[NodeCapture]) -> dict[str, str]:
    """Return a folder for each node: its name, and its id where others have that name too."""
    names = [_plain(capture.name) for capture in captures]
    return {
        one.node: name if names.count(name) == 1 else f"{name}-{_plain(one.node)}"
        for one, name in zip(captures, names, strict=True)
    }


def _plain(text: str) -> str:
    return _OTHER.sub("-", text).strip(".-")[:64] or "node"


def _put(tar: tarfile.TarFile, name: str, content: bytes, made_at_s: float) -> None:
    entry = tarfile.TarInfo(f"shoal-capture/{name}")
    entry.size, entry.mtime, entry.mode = len(content), int(made_at_s), 0o600
    tar.addfile(entry, io.BytesIO(content))
