"""Talks to a hub, and to where it leads: some bytes of a file, as they come.

Of an answer only what was asked for is taken, or the whole file where a hub knows no ranges: the
range and the whole size are held to the listing, and what is packed is refused. Redirects are
followed a few times, from https never to http, and take the token no further than the hub.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass

import httpx

from bus.wire.ids import ModelId
from worker.pulling.failures import failure_of, gated, no_repository, retry_after_of, unreachable
from worker.pulling.listing import HubFile, PullFailed

REDIRECTS = 6
CHUNK_BYTES = 256 << 10
TIMEOUT = httpx.Timeout(30.0, connect=15.0, pool=60.0)
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_PRIVATE = ("authorization", "cookie")


@dataclass(frozen=True, slots=True)
class FileAnswer:
    """Bytes of a file that come, from `begin` on, up to and without `end`."""

    path: str
    begin: int
    end: int
    _raw: Iterator[bytes]

    def parts(self) -> Iterator[bytes]:
        """Yield them as they come, none beyond `end`. Raises PullFailed where some are missing."""
        left = self.end - self.begin
        for part in self._raw:
            kept = part[:left]
            left -= len(kept)
            if kept:
                yield kept
            if not left:
                return
        if left:
            raise unreachable(f"{self.path}: {left:,} bytes are missing at the end of an answer")


class RangeReader:
    """Reads files of one model at one hub; for several threads. `commit` is what they are of."""

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
        """Ask for the bytes of a file from `begin` on, up to and without `end`; a hub may answer
        with the whole file instead. Raises PullFailed, also for what fails while it is read."""
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

    def close(self) -> None:
        """Hang up."""
        self._http.close()

    def _opened(self, url: str, begin: int, end: int) -> httpx.Response:
        """Return the answer at the end of all redirects, its body unread."""
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
                    "changed", f"{self._hub} leads to {to.scheme}:, which is not followed"
                )
            if (to.scheme, to.host, to.port) != (home.scheme, home.host, home.port):
                headers = {n: value for n, value in headers.items() if n.lower() not in _PRIVATE}
            url = str(to)
        raise unreachable(f"it leads on more than {REDIRECTS} times")

    def _check_commit(self, answer: httpx.Response) -> None:
        said = answer.headers.get("x-repo-commit")
        if said is not None and said != self._commit:
            answer.close()
            text = (
                f"{self._hub} gives files of {said[:12]} for {self._commit[:12]} of {self._model}"
            )
            raise PullFailed("changed", text)

    def _check(self, answer: httpx.Response, file: HubFile, begin: int, end: int) -> bool:
        """Return whether the answer is the whole file, and not the bytes that were asked for."""
        if answer.status_code not in (200, 206):
            raise self._refusal(answer)
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise PullFailed("changed", f"{file.path} comes packed, which was not asked for")
        size = file.size_bytes
        if answer.status_code == 206:
            found = _RANGE.fullmatch(answer.headers.get("content-range", ""))
            if found is None:
                raise PullFailed("changed", f"{file.path}: an answer does not say what it is of")
            first, last, size = (int(one) for one in found.groups())
            if size == file.size_bytes and (first, last + 1) != (begin, end):
                raise unreachable(f"{file.path}: other bytes came than were asked for")
        else:
            said = answer.headers.get("content-length", "")
            size = int(said) if said.isdecimal() else size
        if size != file.size_bytes:
            text = f"{file.path} has {size:,} bytes now, and {file.size_bytes:,} in the hub's list"
            raise PullFailed("changed", f"{text}; pull it anew")
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
