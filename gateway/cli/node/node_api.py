"""Talks to a node's HTTP API, as any client would, and turns its errors into `CliError`s."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Generator, Iterator, Mapping
from typing import Any, cast

import httpx

from gateway.cli.node.node_state import NodeState, parse_state
from gateway.cli.output.errors import CliError, no_node, refusal

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0


class NodeApi:
    """The HTTP API of one node, with `key`, else the key of the environment (SHOAL_API_KEY).

    Every method raises CliError when there is no good answer. Fields of a body that are None are
    not sent: they are the node's to choose.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url
        key = key or os.environ.get("SHOAL_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        try:
            # Proxies are for what lies outside; a node is one of our own machines.
            self.http = httpx.Client(
                base_url=url, headers=headers, timeout=timeout, trust_env=False
            )
        except httpx.InvalidURL as error:
            raise CliError(f"{url!r} is not an address: {error}") from error

    def state(self, *, timeout_s: float | None = None) -> NodeState:
        """Return the cluster as the node sees it."""
        return parse_state(self.get("/state", timeout_s=timeout_s))

    def state_if_it_answers(self, timeout_s: float) -> NodeState | None:
        """Return the cluster as the node sees it, None where it does not answer in time."""
        with contextlib.suppress(CliError):
            return self.state(timeout_s=timeout_s)
        return None

    def get(self, path: str, *, timeout_s: float | None = None) -> Any:
        """Return the JSON at `path`."""
        return self._answer("GET", path, None, timeout_s)

    def post(self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None) -> Any:
        """Send a JSON body and return the JSON answer."""
        return self._answer("POST", path, body, timeout_s)

    def delete(self, path: str, *, timeout_s: float | None = None) -> Any:
        """Delete what is at `path` and return the JSON answer."""
        return self._answer("DELETE", path, None, timeout_s)

    @contextlib.contextmanager
    def events(self, path: str, body: Mapping[str, Any]) -> Generator[Iterator[dict[str, Any]]]:
        """Open a streamed answer: the JSON of each `data:` line until `[DONE]`.

        Leaving the block closes the connection, which cancels the request at the node. A
        stream may be silent for as long as the node's keep-alive comments come.
        """
        with (
            self._translated(),
            self.http.stream(
                "POST", path, json=told(body), timeout=httpx.Timeout(60.0, connect=5.0)
            ) as response,
        ):
            if response.status_code >= 400:
                response.read()
                raise refusal(response.status_code, said(response))
            yield _events(response.iter_lines())

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
        if response.status_code >= 400:
            raise refusal(response.status_code, said(response))
        if not response.content:
            return {}
        try:
            return response.json()
        except ValueError as error:
            text = f"{self.url}{path} answered something other than JSON; is it a shoal node?"
            raise CliError(text) from error

    @contextlib.contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise no_node(self.url, str(error) or type(error).__name__) from error
        except httpx.UnsupportedProtocol as error:
            raise CliError(f"{self.url!r} is not an http address") from error
        except httpx.TimeoutException as error:
            text = f"{self.url} did not answer in time"
            raise CliError(
                text, remedy="`shoal status` tells whether it is busy or stuck"
            ) from error
        except httpx.HTTPError as error:
            text = f"the connection to {self.url} broke: {error or type(error).__name__}"
            raise CliError(text, remedy="`shoal status` tells what is left of the node") from error


def told(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without those that are None."""
    return {name: value for name, value in fields.items() if value is not None}


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if not line.startswith("data:"):
            continue
        text = line[5:].strip()
        if text == "[DONE]":
            return
        event = cast(dict[str, Any], json.loads(text))
        if "error" in event:
            raise CliError(message_of(event) or text, remedy="`shoal logs` may tell more")
        yield event


def said(response: httpx.Response) -> str:
    """Return the words of an HTTP error, in any of the dialects."""
    try:
        body = response.json()
    except ValueError:
        body = None
    words = message_of(cast(dict[str, Any], body)) if isinstance(body, dict) else None
    return words or f"the node answered {response.status_code} {response.reason_phrase}".rstrip()


def message_of(body: Mapping[str, Any]) -> str | None:
    """Return the first text of `error.message`, `error`, `message`, `description`, `title`."""
    error = body.get("error")
    nested = cast(dict[str, Any], error).get("message") if isinstance(error, dict) else error
    candidates = (nested, body.get("message"), body.get("description"), body.get("title"))
    return next((text for text in candidates if isinstance(text, str) and text), None)
