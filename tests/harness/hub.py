"""A server that speaks the hub's protocol on loopback, with a CDN behind it, and fails as it is
told to.

`GET /api/models/<repo>[/revision/<rev>]?blobs=true` lists files with Git's blob ids and the SHA-256
of what is kept with LFS; `GET` and `HEAD /<repo>/resolve/<commit>/<path>` answer small files, and
lead to `/cdn/...` for the others; ranges everywhere. `GET /api/models?search=&author=&filter=`
finds models among its repositories and those of `listed`. What was asked for and how many bytes
were sent is counted.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

LFS_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pth")
CHUNK = 64 << 10
_LIST = re.compile(r"/api/models/([^/]+/[^/]+?)(?:/revision/([^/]+))?")
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Faults:
    """What goes wrong, all of it off. Texts name paths of files; counts are of requests."""

    status: int = 0
    """Of each listing; with `code` in X-Error-Code and `retry_after` in Retry-After."""
    code: str = ""
    retry_after: str = ""
    list_times: int = 1 << 30
    """So many listings fail, then they are good."""
    file_status: int = 0
    file_times: int = 1 << 30
    drop_after: int = 0
    """The CDN hangs up after so many bytes of an answer."""
    drop_times: int = 1 << 30
    flip: str = ""
    """One byte of this file is another on the way."""
    flip_times: int = 1
    grown: str = ""
    """This file is longer than listed."""
    no_ranges: bool = False
    commit: str = ""
    """What X-Repo-Commit says instead."""
    packed: bool = False
    endless: bool = False
    """The list of files never ends."""
    silent: bool = False
    """The CDN says nothing."""
    needs_token: str = ""
    bytes_per_s: float = 0.0
    listing: list[dict[str, Any]] | None = None
    """Said instead of the true list of files."""
    redirect: str = ""
    """Where a file's path leads instead of to the CDN."""
    search_status: int = 0
    """Of each search; with `retry_after` in Retry-After."""


@dataclass
class Sent:
    """What the server was asked for, and what it sent of files."""

    lists: int = 0
    searches: int = 0
    files: int = 0
    body_bytes: int = 0
    of: dict[str, int] = field(default_factory=dict[str, int])
    ranges: list[str] = field(default_factory=list[str])
    tokens_at_cdn: int = 0


class HubServer:
    """A hub with repositories, each a folder of files. All branches of all are at `commit`."""

    def __init__(self, repositories: dict[str, dict[str, bytes]]) -> None:
        self.repositories = repositories
        self.sizes: dict[str, dict[str, int]] = {}
        """Of repositories, files that are listed as so large whatever they hold."""
        self.listed: dict[str, dict[str, Any]] = {}
        """What a search tells of models beside their names, and of models that have no files."""
        self.commit = "0123456789abcdef0123456789abcdef01234567"
        self.faults = Faults()
        self.sent = Sent()
        self.lock = threading.Lock()
        hub = self

        class Handler(_Handler):
            """This hub's."""

            server_hub: ClassVar = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def forget(self) -> None:
        """Count from nothing."""
        self.sent = Sent()

    def found(self, words: str, author: str, tag: str) -> list[dict[str, Any]]:
        """What a search tells, most downloads first. A repository of files has safetensors."""
        every = {name: self.tagged(name) for name in self.repositories} | self.listed
        fits = [
            {"id": name, "downloads": 0, **said}
            for name, said in every.items()
            if all(word in name.lower() for word in words.lower().split())
            and name.startswith(f"{author}/" if author else "")
            and (not tag or tag in said.get("tags", ()))
        ]
        return sorted(fits, key=lambda one: -one["downloads"])

    def tagged(self, repository: str) -> dict[str, Any]:
        """What a search tells of a repository of files: the formats of its weights, and names."""
        names = self.repositories[repository]
        ggufs = all(name.endswith(".gguf") or not name.endswith(LFS_SUFFIXES) for name in names)
        tag = "gguf" if ggufs and any(name.endswith(".gguf") for name in names) else "safetensors"
        return {"tags": [tag], "siblings": [{"rfilename": name} for name in names]}

    def siblings(self, repository: str) -> list[dict[str, Any]]:
        """The true list of files."""
        if self.faults.listing is not None:
            return self.faults.listing
        found: list[dict[str, Any]] = []
        for name, content in self.repositories[repository].items():
            size = self.sizes.get(repository, {}).get(name, len(content))
            one: dict[str, Any] = {
                "rfilename": name,
                "size": size,
                "blobId": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(),
            }
            if name.endswith(LFS_SUFFIXES):
                sha256 = hashlib.sha256(content).hexdigest()
                one["lfs"] = {"sha256": sha256, "size": size, "pointerSize": 134}
            found.append(one)
        return found


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of a folder, by relative path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class _Handler(BaseHTTPRequestHandler):
    server_hub: ClassVar[HubServer]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        """As GET, without a body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Answer."""
        path = unquote(urlsplit(self.path).path)
        try:
            if path == "/api/models":
                self._search(parse_qs(urlsplit(self.path).query))
            elif found := _LIST.fullmatch(path):
                self._list(found[1], found[2])
            elif found := _RESOLVE.fullmatch(path):
                self._resolve(found[1], found[2], found[3])
            elif path.startswith("/cdn/"):
                owner, name, rest = path.removeprefix("/cdn/").split("/", 2)
                self._cdn(f"{owner}/{name}", rest)
            else:
                self._say(404, {"error": "not found"}, {"X-Error-Code": "EntryNotFound"})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _say(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _refused(self, status: int) -> None:
        faults = self.server_hub.faults
        headers = {"X-Error-Code": faults.code} if faults.code else {}
        headers |= {"Retry-After": faults.retry_after} if faults.retry_after else {}
        self._say(status, {"error": "refused"}, headers)

    def _has_token(self) -> bool:
        wanted = self.server_hub.faults.needs_token
        return not wanted or self.headers.get("Authorization") == f"Bearer {wanted}"

    def _search(self, asked: dict[str, list[str]]) -> None:
        hub, faults = self.server_hub, self.server_hub.faults
        with hub.lock:
            hub.sent.searches += 1
        if faults.search_status:
            self._refused(faults.search_status)
        elif not self._has_token():
            self._say(401, {"error": "no"})
        elif faults.endless:
            self._endless()
        else:
            (words,), (author,), (tag,), (limit,) = (
                asked.get(name, [""]) for name in ("search", "author", "filter", "limit")
            )
            self._say(200, hub.found(words, author, tag)[: int(limit or 1000)])

    def _list(self, repository: str, revision: str | None) -> None:
        hub, faults = self.server_hub, self.server_hub.faults
        with hub.lock:
            hub.sent.lists += 1
            fails = faults.status and faults.list_times > 0
            faults.list_times -= 1
        if fails:
            self._refused(faults.status)
        elif repository not in hub.repositories or not self._has_token():
            code = {} if self._has_token() else {"X-Error-Message": "Invalid username or password."}
            self._say(
                401 if code else 404, {"error": "no"}, {"X-Error-Code": "RepoNotFound", **code}
            )
        elif revision not in (None, "main", hub.commit):
            self._say(404, {"error": "no revision"}, {"X-Error-Code": "RevisionNotFound"})
        elif faults.endless:
            self._endless()
        else:
            said = {"id": repository, "sha": hub.commit, "siblings": hub.siblings(repository)}
            self._say(200, said, {"X-Repo-Commit": hub.commit})

    def _endless(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.close_connection = True
        while True:
            self.wfile.write(b" " * CHUNK)

    def _resolve(self, repository: str, revision: str, path: str) -> None:
        hub, faults = self.server_hub, self.server_hub.faults
        content = hub.repositories.get(repository, {}).get(path)
        with hub.lock:
            hub.sent.files += 1
            fails = faults.file_status and faults.file_times > 0
            faults.file_times -= 1
        if fails:
            self._refused(faults.file_status)
        elif content is None or not self._has_token():
            self._say(404, {"error": "no"}, {"X-Error-Code": "EntryNotFound"})
        elif revision != hub.commit:
            self._say(404, {"error": "no revision"}, {"X-Error-Code": "RevisionNotFound"})
        elif path.endswith(LFS_SUFFIXES):
            self.send_response(302)
            self.send_header("X-Repo-Commit", faults.commit or hub.commit)
            self.send_header("X-Linked-Size", str(len(content)))
            self.send_header("X-Linked-Etag", f'"{hashlib.sha256(content).hexdigest()}"')
            # another name of this machine is another host: what was meant for the hub stays there
            other = hub.url.replace("127.0.0.1", "localhost")
            self.send_header("Location", faults.redirect or f"{other}/cdn/{repository}/{path}")
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._send(path, content, {"X-Repo-Commit": faults.commit or hub.commit})

    def _cdn(self, repository: str, path: str) -> None:
        if self.headers.get("Authorization"):
            self.server_hub.sent.tokens_at_cdn += 1
        self._send(path, self.server_hub.repositories[repository][path], {})

    def _send(self, path: str, content: bytes, headers: dict[str, str]) -> None:
        hub, faults = self.server_hub, self.server_hub.faults
        if path == faults.grown:
            content += b"more"
        begin, end, status = 0, len(content), 200
        said = self.headers.get("Range", "")
        if (found := re.fullmatch(r"bytes=(\d+)-(\d+)", said)) and not faults.no_ranges:
            begin, end, status = int(found[1]), min(len(content), int(found[2]) + 1), 206
        with hub.lock:
            hub.sent.ranges.append(f"{path} {said}")
            flips = path == faults.flip and faults.flip_times > 0 and begin < end
            faults.flip_times -= flips
            drops = faults.drop_after and faults.drop_times > 0 and end - begin > faults.drop_after
            faults.drop_times -= bool(drops)
        body = content[begin:end]
        if flips:
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        if faults.packed:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        while faults.silent:
            time.sleep(0.05)
        self._write(path, body, faults.drop_after if drops else len(body))

    def _write(self, path: str, body: bytes, most: int) -> None:
        hub, sent = self.server_hub, self.server_hub.sent
        for at in range(0, most, CHUNK):
            part = body[at : min(most, at + CHUNK)]
            self.wfile.write(part)
            with hub.lock:
                sent.body_bytes += len(part)
                sent.of[path] = sent.of.get(path, 0) + len(part)
            if hub.faults.bytes_per_s:
                time.sleep(len(part) / hub.faults.bytes_per_s)
        if most < len(body):
            self.close_connection = True
            self.connection.shutdown(2)
