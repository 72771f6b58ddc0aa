"""Talks to a node's HTTP API, like any client, and turns its errors into `CliError`s."""

from __future__ import annotations

import contextlib
import json
import os
import ssl
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import httpx2

from bus.process.identity import known_http_token, known_node_id
from conf.paths import Paths
from conf.settings import Settings
from gateway.cli.node.locks import GATEWAY_LOCK, lock_holder
from gateway.cli.node.trust import own_trust, trust
from gateway.cli.output.errors import (
    NOT_FOUND,
    CliError,
    broken_model,
    no_node,
    no_node_in,
    refusal,
    untrusted,
)

if TYPE_CHECKING:
    from gateway.cli.node.node_state import NodeState

NO_ROOM_S = 5.0
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
PUT_TIMEOUT_S = 90.0
"""Deadline of a write. It is long, because every node of the cluster must answer."""
PLAIN = "text/plain"
"""Content type of errors that the HTTP server itself sends, before any dialect is chosen."""
SOCKET = "unix://"
"""Prefix of the address of a node without a port. The path of the node's socket follows the prefix.
"""
KEEP_ALIVE = "keep-alive"
"""Text of the server-sent comment that keeps a connection open."""


class NodeApi:
    """The HTTP API of one node. Every method raises CliError if the node gives no valid answer.

    `own_key` returns the owner's token and is called for each request; if it returns none,
    SHOAL_API_KEY is sent. Body fields that are None are left out, so that the node applies its
    defaults. `trusted` are the certificates that are trusted for an https address; the default is
    this system's certificates. `url` may also be `unix://` and the path of a socket.
    """

    def __init__(
        self,
        url: str,
        own_key: Callable[[], str | None] | None = None,
        *,
        trusted: ssl.SSLContext | None = None,
    ) -> None:
        self.url = url
        path = url.removeprefix(SOCKET) if url.startswith(SOCKET) else None
        self._own_key = own_key
        timeout = httpx2.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        # reading this system's certificates takes 60 ms, and plain HTTP needs none
        is_secure = url.lower().startswith("https:")
        verify = trusted or (trust(None) if is_secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        try:
            # no proxies: a node is one of our own machines
            self.http = httpx2.Client(
                base_url=url if path is None else "http://localhost",
                transport=None if path is None else httpx2.HTTPTransport(uds=path),
                auth=self._with_key,
                timeout=timeout,
                trust_env=False,
                verify=verify,
            )
        except httpx2.InvalidURL as error:
            raise CliError(f"invalid address {url!r}: {error}") from error

    def node_id(self) -> str | None:
        """Return the id of the node that answers; None if another program answers.

        If the node requires an API key and none was sent, the node does not report its id, and this
        raises CliError.
        """
        with self._translated():
            health = self.http.get("/health")
        with contextlib.suppress(ValueError, AttributeError):
            if node := health.json().get("node"):
                return str(node)
        try:
            return str(self.get("/state")["node"])
        except (KeyError, TypeError):
            return None
        except CliError as problem:
            if problem.code == NOT_FOUND:
                return None
            raise

    def state(self, *, timeout_s: float | None = None) -> NodeState:
        """Return the cluster as the node sees it."""
        from gateway.cli.node.node_state import parse_state  # half of this module's import time

        return parse_state(self.get("/state", timeout_s=timeout_s))

    def state_if_it_answers(self, timeout_s: float) -> NodeState | None:
        """Return the cluster as the node sees it; None if it does not answer in time."""
        with contextlib.suppress(CliError):
            return self.state(timeout_s=timeout_s)
        return None

    def no_room(self, model: str) -> str:
        """Return why no node has enough free memory for a model, with the numbers. Empty if a node
        has enough, or if the answering node does not know."""
        with contextlib.suppress(CliError), self._translated():
            query = {"model": model}
            response = self.http.get("/instance/placement", params=query, timeout=NO_ROOM_S)
            if response.status_code == 507:
                return _refused(response).message
        return ""

    def get(self, path: str, *, timeout_s: float | None = None) -> Any:
        """Return the JSON at `path`."""
        return self._answer("GET", path, None, timeout_s)

    def post(self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None) -> Any:
        """Send a JSON body and return the JSON answer."""
        return self._answer("POST", path, body, timeout_s)

    def put(self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None) -> Any:
        """Replace the resource at `path` with a JSON body and return the JSON answer."""
        return self._answer("PUT", path, body, timeout_s)

    def delete(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """Delete the resource at `path`, or only the entries that the JSON body names. Return the
        JSON answer."""
        return self._answer("DELETE", path, body, timeout_s)

    def put_text(self, path: str, text: str, *, tag: str) -> Any:
        """Replace the text at `path` if its ETag is still the given one. Return the JSON answer."""
        with self._translated():
            response = self.http.put(
                path,
                content=text.encode(),
                headers={"content-type": "application/toml", "if-match": f'"{tag}"'},
                timeout=PUT_TIMEOUT_S,
            )
        return self._json(path, response)

    def file(self, path: str, body: Mapping[str, Any], *, timeout_s: float) -> bytes:
        """Send a JSON body and return the bytes of the answer's file."""
        with self._translated():
            response = self.http.post(path, json=without_none(body), timeout=timeout_s)
        if response.status_code >= 400:
            raise _refused(response)
        return response.content

    @contextlib.contextmanager
    def events(
        self,
        path: str,
        body: Mapping[str, Any],
        remark: Callable[[str], None] | None = None,
    ) -> Generator[Iterator[dict[str, Any]]]:
        """Open a streamed answer: the JSON of each `data:` line until `[DONE]`.

        `remark` is called with the node's progress comments, such as the progress of loading.

        Leaving the block closes the connection, which cancels the request at the node. A stream may
        be silent as long as the node sends keep-alive comments.
        """
        with self._lines(path, body) as lines:
            yield _events(lines, remark)

    @contextlib.contextmanager
    def json_lines(self, path: str, body: Mapping[str, Any]) -> Generator[Iterator[dict[str, Any]]]:
        """Open an answer that is a sequence of JSON lines. Leaving the `with` block closes the
        connection, which stops the node's work. Raises CliError for a line with an error."""
        with self._lines(path, body) as lines:
            yield _lines_of(lines)

    @contextlib.contextmanager
    def _lines(self, path: str, body: Mapping[str, Any]) -> Generator[Iterator[str]]:
        """Open a streamed answer. Raises CliError if the node refuses."""
        with (
            self._translated(),
            self.http.stream(
                "POST", path, json=without_none(body), timeout=httpx2.Timeout(60.0, connect=5.0)
            ) as response,
        ):
            if response.status_code >= 400:
                response.read()
                raise _refused(response)
            yield response.iter_lines()

    def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float | None
    ) -> Any:
        with self._translated():
            response = self.http.request(
                method,
                path,
                json=None if body is None else without_none(body),
                timeout=httpx2.USE_CLIENT_DEFAULT if timeout_s is None else timeout_s,
            )
        return self._json(path, response)

    def _json(self, path: str, response: httpx2.Response) -> Any:
        if response.status_code >= 400:
            raise _refused(response)
        if not response.content:
            return {}
        try:
            return response.json()
        except ValueError as error:
            text = f"{self.url}{path} did not answer in JSON; check that it is a shoal node"
            raise CliError(text) from error

    def _with_key(self, request: httpx2.Request) -> httpx2.Request:
        key = (self._own_key() if self._own_key else None) or os.environ.get("SHOAL_API_KEY")
        if key:
            request.headers["Authorization"] = f"Bearer {key}"
        return request

    @contextlib.contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise untrusted(self.url, str(error)) from error
            raise no_node(self.url, str(error) or type(error).__name__) from error
        except httpx2.UnsupportedProtocol as error:
            raise CliError(f"{self.url!r} is not an HTTP address") from error
        except httpx2.TimeoutException as error:
            text = f"{self.url} did not answer in time"
            raise CliError(text, remedy="see `shoal status`: it may be busy or stuck") from error
        except httpx2.HTTPError as error:
            text = f"the connection to {self.url} broke: {error or type(error).__name__}"
            raise CliError(
                text, remedy="see `shoal status` for the processes that still run"
            ) from error


def own_api(settings: Settings) -> NodeApi:
    """Return the HTTP API of this home's node. HTTPS trusts the node's own certificate."""
    return home_api(settings.url, settings.paths, trusted=own_trust(settings))


def home_api(url: str, paths: Paths, *, trusted: ssl.SSLContext | None = None) -> NodeApi:
    """Return the HTTP API of a home's own node. The owner's token is sent only while the gateway of
    this home runs. Otherwise another program that listens at the address could receive the token.
    """

    def own_key() -> str | None:
        is_up = lock_holder(paths.runtime / GATEWAY_LOCK) is not None
        return known_http_token(paths.state) if is_up else None

    return NodeApi(url.rstrip("/"), own_key, trusted=trusted)


def check_is_of(api: NodeApi, paths: Paths) -> None:
    """Check that the node of this home answers. Raises CliError if no node runs in this home, or if
    another node answers at its address."""
    own = known_node_id(paths.state)
    if own is None:
        raise no_node_in(paths.home, chosen=paths.chosen)
    node = api.node_id()
    if node != own:
        answers = f"node {node}" if node else "another program"
        raise no_node(api.url, f"{answers} answers there, not the node of {paths.home}")


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields whose value is not None."""
    return {name: value for name, value in fields.items() if value is not None}


def _events(lines: Iterator[str], remark: Callable[[str], None] | None) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith(":") and remark is not None and line[1:].strip() != KEEP_ALIVE:
            remark(line[1:].strip())
        if not line.startswith("data:"):
            continue
        text = line[5:].strip()
        if text == "[DONE]":
            return
        event = cast(dict[str, Any], json.loads(text))
        if "error" in event:
            if is_given_up(event):
                raise broken_model(message_of(event) or text)
            raise CliError(message_of(event) or text, remedy="see `shoal logs`")
        yield event


def _lines_of(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        reply = cast(dict[str, Any], json.loads(line))
        if "error" in reply:
            error = _error_of(reply)
            words = message_of(reply) or line
            raise refusal(int(error.get("status", 500)), words, str(error.get("code")))
        yield reply


def _refused(response: httpx2.Response) -> CliError:
    try:
        document = response.json()
    except ValueError:
        document = None
    body = cast(dict[str, Any], document) if isinstance(document, dict) else {}
    status = f"the node answered {response.status_code} {response.reason_phrase}".rstrip()
    if document is None and response.headers.get("content-type") == PLAIN:
        status = f"{status}: {response.text[:200].strip()}"
    words = message_of(body) or status
    if is_given_up(body):
        return broken_model(words)
    return refusal(response.status_code, words, str(_error_of(body).get("code")))


def is_given_up(body: Mapping[str, Any]) -> bool:
    """Return whether an error says that the node gave up loading the model. The caller can then
    stop waiting."""
    return bool(_error_of(body).get("given_up"))


def _error_of(body: Mapping[str, Any]) -> dict[str, Any]:
    error = body.get("error")
    return cast(dict[str, Any], error) if isinstance(error, dict) else {}


def message_of(body: Mapping[str, Any]) -> str | None:
    """Return the first text among `error.message`, `error`, `message`, `description`, `title`."""
    error = body.get("error")
    nested = _error_of(body).get("message") if isinstance(error, dict) else error
    candidates = (nested, body.get("message"), body.get("description"), body.get("title"))
    return next((text for text in candidates if isinstance(text, str) and text), None)
