"""Talks to a hub and to its redirect targets: reads ranges of a file.

Only the requested bytes of an answer are used, or the whole file if a hub does not support ranges.
The range and the total size must match the listing, and compressed answers are refused. A few
redirects are followed, never from https to http, and the token goes only to the hub.
"""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import httpx

from bus.wire.ids import ModelId
from worker.pulling.failures import failure_of, gated, no_repository, retry_after_of, unreachable
from worker.pulling.listing import HubFile, PullFailed

REDIRECTS = 6
HEAD_BYTES = 2 << 20
"""The number of bytes that one request reads when the beginning of a large file is read as a
stream."""
CHUNK_BYTES = 256 << 10
TIMEOUT = httpx.Timeout(30.0, connect=15.0, pool=60.0)
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_PRIVATE = ("authorization", "cookie")


@dataclass(frozen=True, slots=True)
class FileAnswer:
    """Incoming bytes of a file, from `begin` up to, not including, `end`."""

    path: str
    begin: int
    end: int
    _raw: Iterator[bytes]

    def parts(self) -> Iterator[bytes]:
        """Yield the parts of the answer's body up to `end`. Raises PullFailed if the body ends
        earlier."""
        left = self.end - self.begin
        for part in self._raw:
            wanted = part[:left]
            left -= len(wanted)
            if wanted:
                yield wanted
            if not left:
                return
        if left:
            raise unreachable(f"{self.path}: {left:,} bytes are missing at the end of a response")


class RangeReader:
    """Reads files of one model, at one `commit`, from one hub. Several threads may use it."""

    def __init__(
        self, model: ModelId, commit: str, hub: str, headers: Mapping[str, str], connections: int
    ) -> None:
        self._model = model
        self._commit = commit
        self._hub = hub
        self._headers = {**headers, "accept-encoding": "identity"}
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        self._http = httpx.Client(timeout=TIMEOUT, limits=limits, follow_redirects=False)

    @contextlib.contextmanager
    def opened(self, url: str, file: HubFile, begin: int, end: int) -> Generator[FileAnswer]:
        """Request the bytes of a file from `begin` up to, not including, `end`; a hub may answer
        with the whole file instead. Raises PullFailed, also for errors while reading."""
        try:
            with contextlib.closing(self._opened(url, begin, end)) as answer:
                is_whole = self._check(answer, file, begin, end)
                first, last = (0, file.size_bytes) if is_whole else (begin, end)
                yield FileAnswer(file.path, first, last, answer.iter_raw(CHUNK_BYTES))
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise unreachable(f"{file.path}: {error or type(error).__name__}") from None

    def read(self, url: str, file: HubFile) -> bytes:
        """Return the whole of a small file. Raises PullFailed."""
        with self.opened(url, file, 0, file.size_bytes) as answer:
            return b"".join(answer.parts())

    def beginning(self, url: str, file: HubFile) -> BinaryIO:
        """Return a stream that reads a file in order, by requests for its ranges. Reading raises
        PullFailed."""
        return io.BufferedReader(_Ranges(self, url, file), HEAD_BYTES)

    def close(self) -> None:
        self._http.close()

    def _opened(self, url: str, begin: int, end: int) -> httpx.Response:
        """Return the answer after all redirects, its body unread."""
        headers = {**self._headers, "range": f"bytes={begin}-{end - 1}"}
        home = httpx.URL(url)
        for _ in range(REDIRECTS):
            request = self._http.build_request("GET", url, headers=headers)
            answer = self._http.send(request, stream=True)
            self._check_commit(answer)
            if answer.status_code not in (301, 302, 303, 307, 308):
                return answer
            answer.close()
            to = request.url.join(answer.headers.get("location", ""))
            if to.scheme not in ("http", "https") or (request.url.scheme, to.scheme) == (
                "https",
                "http",
            ):
                raise PullFailed(
                    "changed", f"{self._hub} redirects to {to.scheme}:, which is not allowed"
                )
            if (to.scheme, to.host, to.port) != (home.scheme, home.host, home.port):
                headers = {n: value for n, value in headers.items() if n.lower() not in _PRIVATE}
            url = str(to)
        raise unreachable(f"more than {REDIRECTS} redirects")

    def _check_commit(self, answer: httpx.Response) -> None:
        commit = answer.headers.get("x-repo-commit")
        if commit is not None and commit != self._commit:
            answer.close()
            text = (
                f"{self._hub} returns files of commit {commit[:12]} instead of "
                f"{self._commit[:12]} of {self._model}"
            )
            raise PullFailed("changed", text)

    def _check(self, answer: httpx.Response, file: HubFile, begin: int, end: int) -> bool:
        """Return whether the answer is the whole file instead of the requested bytes."""
        if answer.status_code not in (200, 206):
            raise self._refusal(answer)
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise PullFailed(
                "changed", f"{file.path} is compressed, although no compression was requested"
            )
        size = file.size_bytes
        if answer.status_code == 206:
            match = _RANGE.fullmatch(answer.headers.get("content-range", ""))
            if match is None:
                raise PullFailed(
                    "changed", f"{file.path}: a response does not state its byte range"
                )
            first, last, size = (int(number) for number in match.groups())
            if size == file.size_bytes and (first, last + 1) != (begin, end):
                raise unreachable(
                    f"{file.path}: the response has a different byte range than requested"
                )
        else:
            length = answer.headers.get("content-length", "")
            size = int(length) if length.isdecimal() else size
        if size != file.size_bytes:
            text = f"{file.path} now has {size:,} bytes, but {file.size_bytes:,} in the hub's list"
            raise PullFailed("changed", f"{text}; pull it again")
        return answer.status_code == 200

    def _refusal(self, answer: httpx.Response) -> PullFailed:
        status, code = answer.status_code, answer.headers.get("x-error-code")
        has_token = "authorization" in {name.lower() for name in self._headers}
        if code == "GatedRepo":
            return gated(self._model, self._hub, has_token=has_token)
        if code == "RepoNotFound":
            return no_repository(self._model, self._hub, status, has_token=has_token)
        waits_s = retry_after_of(answer.headers, time.time())
        return failure_of(status, waits_s, self._model, self._hub)


class _Ranges(io.RawIOBase):
    """A file of a hub as a stream; each read is one request."""

    def __init__(self, reader: RangeReader, url: str, file: HubFile) -> None:
        self._reader = reader
        self._url = url
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes; return their number, 0 at the end. Raises
        PullFailed."""
        view = memoryview(buffer).cast("B")
        begin, end = self._at, min(self._at + len(view), self._file.size_bytes)
        if begin == end:
            return 0
        with self._reader.opened(self._url, self._file, begin, end) as answer:
            at = answer.begin
            for part in answer.parts():
                fresh = part[max(0, begin - at) : max(0, end - at)]
                view[self._at - begin : self._at - begin + len(fresh)] = fresh
                self._at += len(fresh)
                at += len(part)
                if self._at == end:
                    break
        return self._at - begin
