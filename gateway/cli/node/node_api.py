"""Talks to a node's HTTP API, as any client would, and turns its errors into `CliError`s."""

from __future__ import annotations

import contextlib
import json
import os
import ssl
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, cast

import httpx

from bus.process.identity import known_http_token, known_node_id
from conf.paths import Paths
from conf.settings import Settings
from gateway.cli.node.node_state import NodeState, parse_state
from gateway.cli.node.processes import lock_holder
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

NO_ROOM_S = 5.0
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
PUT_TIMEOUT_S = 90.0
"""Deadline of a write: every node must answer."""
GATEWAY_LOCK = "gateway.role"
PLAIN = "text/plain"
"""Errors of the HTTP server itself, before any API."""
SOCKET = "unix://"
"""Prefix of the address of a node without a port: the path of its socket follows."""
KEEP_ALIVE = "keep-alive"
"""Server-sent comment that keeps a connection open."""


class NodeApi:
    """The HTTP API of one node. `own_key` tells what its owner has, each time that it is asked;
    where there is none, the key of the environment counts (SHOAL_API_KEY).

    Every method raises CliError when there is no good answer. Fields of a body that are None are
    not sent: they are the node's to choose. `trusted` are the certificates of an https address,
    else those of this system. A `url` may be `unix://` and the path of a socket.
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
        timeout = httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        verify = trusted or trust(None)
        try:
            # Proxies are for what lies outside; a node is one of our own machines.
            self.http = httpx.Client(
                base_url=url if path is None else "http://localhost",
                transport=None if path is None else httpx.HTTPTransport(uds=path),
                auth=self._with_key,
                timeout=timeout,
                trust_env=False,
                verify=verify,
            )
        except httpx.InvalidURL as error:
            raise CliError(f"invalid address {url!r}: {error}") from error

    def node_id(self) -> str | None:
        """Return the id of the node that answers; None where what answers is no node.

        A node that asks for a key tells it to who has one: CliError says that there is none.
        """
        with self._translated():
            health = self.http.get("/health")
        with contextlib.suppress(ValueError, AttributeError):
            if found := health.json().get("node"):
                return str(found)
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
        return parse_state(self.get("/state", timeout_s=timeout_s))

    def state_if_it_answers(self, timeout_s: float) -> NodeState | None:
        """Return the cluster as the node sees it, None where it does not answer in time."""
        with contextlib.suppress(CliError):
            return self.state(timeout_s=timeout_s)
        return None

    def no_room(self, model: str) -> str:
        """Return why no node has memory for a model, with the sum; empty where one has, or where it
        is not known."""
        with contextlib.suppress(CliError), self._translated():
            asked = {"model": model}
            response = self.http.get("/instance/placement", params=asked, timeout=NO_ROOM_S)
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
        """Put a JSON body in the place of what is there and return the JSON answer."""
        return self._answer("PUT", path, body, timeout_s)

    def delete(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """Delete what is at `path`, or what a JSON body names, and return the JSON answer."""
        return self._answer("DELETE", path, body, timeout_s)

    def put_text(self, path: str, text: str, *, tag: str) -> Any:
        """Put a text at `path`, where what is there still has this tag, and return the JSON
        answer."""
        with self._translated():
            response = self.http.put(
                path,
                content=text.encode(),
                headers={"content-type": "application/toml", "if-match": f'"{tag}"'},
                timeout=PUT_TIMEOUT_S,
            )
        return self._json(path, response)

    def file(self, path: str, body: Mapping[str, Any], *, timeout_s: float) -> bytes:
        """Send a JSON body and return the bytes of the file that is answered."""
        with self._translated():
            response = self.http.post(path, json=told(body), timeout=timeout_s)
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

        `remark` is told what the node says meanwhile for people: how far loading is.

        Leaving the block closes the connection, which cancels the request at the node. A
        stream may be silent for as long as the node's keep-alive comments come.
        """
        with self._lines(path, body) as lines:
            yield _events(lines, remark)

    @contextlib.contextmanager
    def json_lines(self, path: str, body: Mapping[str, Any]) -> Generator[Iterator[dict[str, Any]]]:
        """Open an answer that is a line of JSON after the other. Leaving the block closes the
        connection, which stops what the node does for it. Raises CliError for a line that says that
        it failed."""
        with self._lines(path, body) as lines:
            yield _lines_of(lines)

    @contextlib.contextmanager
    def _lines(self, path: str, body: Mapping[str, Any]) -> Generator[Iterator[str]]:
        """Open a streamed answer. Raises CliError for one that is a refusal."""
        with (
            self._translated(),
            self.http.stream(
                "POST", path, json=told(body), timeout=httpx.Timeout(60.0, connect=5.0)
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
                json=None if body is None else told(body),
                timeout=httpx.USE_CLIENT_DEFAULT if timeout_s is None else timeout_s,
            )
        return self._json(path, response)

    def _json(self, path: str, response: httpx.Response) -> Any:
        if response.status_code >= 400:
            raise _refused(response)
        if not response.content:
            return {}
        try:
            return response.json()
        except ValueError as error:
            text = f"{self.url}{path} did not answer in JSON; check that it is a shoal node"
            raise CliError(text) from error

    def _with_key(self, request: httpx.Request) -> httpx.Request:
        key = (self._own_key() if self._own_key else None) or os.environ.get("SHOAL_API_KEY")
        if key:
            request.headers["Authorization"] = f"Bearer {key}"
        return request

    @contextlib.contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise untrusted(self.url, str(error)) from error
            raise no_node(self.url, str(error) or type(error).__name__) from error
        except httpx.UnsupportedProtocol as error:
            raise CliError(f"{self.url!r} is not an HTTP address") from error
        except httpx.TimeoutException as error:
            text = f"{self.url} did not answer in time"
            raise CliError(text, remedy="see `shoal status`: it may be busy or stuck") from error
        except httpx.HTTPError as error:
            text = f"the connection to {self.url} broke: {error or type(error).__name__}"
            raise CliError(
                text, remedy="see `shoal status` for the processes that still run"
            ) from error


def own_api(settings: Settings) -> NodeApi:
    """Return the HTTP API of this home's node, as `home_api` does, where HTTPS is trusted by the
    node's own certificate."""
    return home_api(settings.url, settings.paths, trusted=own_trust(settings))


def home_api(url: str, paths: Paths, *, trusted: ssl.SSLContext | None = None) -> NodeApi:
    """Return the HTTP API of a home's own node. Its owner's token is sent only while the node's
    gateway runs: else a stranger might listen there, and have it."""

    def own_key() -> str | None:
        """Return the token, None while no gateway of this home runs."""
        is_up = lock_holder(paths.runtime / GATEWAY_LOCK) is not None
        return known_http_token(paths.state) if is_up else None

    return NodeApi(url.rstrip("/"), own_key, trusted=trusted)


def check_is_of(api: NodeApi, paths: Paths) -> None:
    """Check that the node of this home is what answers. Raises CliError: no node runs there, or
    another answers at its address."""
    own = known_node_id(paths.state)
    if own is None:
        raise no_node_in(paths.home, chosen=paths.chosen)
    found = api.node_id()
    if found != own:
        answers = f"node {found}" if found else "another program"
        raise no_node(api.url, f"{answers} answers there, not the node of {paths.home}")


def told(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without those that are None."""
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
        said = cast(dict[str, Any], json.loads(line))
        if "error" in said:
            error = _error_of(said)
            words = message_of(said) or line
            raise refusal(int(error.get("status", 500)), words, str(error.get("code")))
        yield said


def _refused(response: httpx.Response) -> CliError:
    try:
        found = response.json()
    except ValueError:
        found = None
    body = cast(dict[str, Any], found) if isinstance(found, dict) else {}
    told = f"the node answered {response.status_code} {response.reason_phrase}".rstrip()
    if found is None and response.headers.get("content-type") == PLAIN:
        told = f"{told}: {response.text[:200].strip()}"
    words = message_of(body) or told
    if is_given_up(body):
        return broken_model(words)
    return refusal(response.status_code, words, str(_error_of(body).get("code")))


def is_given_up(body: Mapping[str, Any]) -> bool:
    """Return whether an error says that the model was given up: to wait for it is in vain."""
    return bool(_error_of(body).get("given_up"))


def _error_of(body: Mapping[str, Any]) -> dict[str, Any]:
    error = body.get("error")
    return cast(dict[str, Any], error) if isinstance(error, dict) else {}


def message_of(body: Mapping[str, Any]) -> str | None:
    """Return the first text of `error.message`, `error`, `message`, `description`, `title`."""
    error = body.get("error")
    nested = _error_of(body).get("message") if isinstance(error, dict) else error
    candidates = (nested, body.get("message"), body.get("description"), body.get("title"))
    return next((text for text in candidates if isinstance(text, str) and text), None)
