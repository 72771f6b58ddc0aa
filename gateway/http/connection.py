"""Talks to gunicorn: handles a client's connection from its first byte until the request's headers
are complete.

`Connection` extends the protocol class of gunicorn (27.0). It adds a deadline for headers and a
limit on connections. It answers half-closed connections and absurd Content-Length values with an
error. It adds the names of some statuses, and writes one chunk per line of JSON. The limits apply
to every client, because no API key has been read at this point.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportMissingSuperCall=false
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportPrivateUsage=false
# (gunicorn carries no type information)
from __future__ import annotations

from http import HTTPStatus
from typing import Any

from gunicorn.asgi import protocol

from bus.process.clock import now
from gateway.http.scope import KEY, RequestScope
from gateway.view.options import Options

LINES = b"application/x-ndjson"
LAST_WORD_S = 1.0
"""How long the application may take to answer a client that has closed its sending side. Such a
client may still read, or may be gone."""
BODY_TAKEN_S = 0.02
for _status in HTTPStatus:  # gunicorn names unlisted statuses "Unknown"
    protocol._REASON_PHRASES.setdefault(_status.value, _status.phrase)


class Connection(protocol.ASGIProtocol):
    """One client connection. It is closed with an error if the headers are late, or if too many
    connections are open.

    The headers of the second and later requests on a connection must arrive within the keep-alive
    time.
    """

    def __init__(self, worker: Any) -> None:
        super().__init__(worker)
        self._options: Options = worker.app.options
        self._headers_due: Any = None
        self._is_of_lines = False
        self._came_at = 0.0
        """Arrival of the current request's first byte; 0 between requests."""
        self._began_at = 0.0
        """Arrival of the first byte of the latest request with complete headers."""
        self._noted: dict[str, Any] = {}
        self._is_answering = False
        """True once the answer to the latest request has begun."""
        self._last_word: Any = None

    def connection_made(self, transport: Any) -> None:
        """Accept the connection, or refuse it if `max_connections` are open."""
        super().connection_made(transport)
        self.worker.connections.add(self)
        most = self._options.max_connections
        if self.worker.nr_conns > most:
            self._refuse(
                503, f"too many open connections; the limit is {most}", ("Retry-After", "1")
            )
            return
        due_s = self._options.headers_s
        self._headers_due = self.worker.loop.call_later(due_s, self._headers_overdue)

    def connection_lost(self, exc: Any) -> None:
        self.worker.connections.discard(self)
        self._headers_came()
        if self._last_word is not None:
            self._last_word.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read bytes, and store when the first byte of a request arrived."""
        self._came_at = self._came_at or now()
        super().data_received(data)

    def eof_received(self) -> bool:
        """Answer a client that has closed its sending side. The client may still read the answer,
        or may be gone.

        The application gets the same notice as for a lost connection. Return whether the connection
        stays open for the answer.
        """
        request = self._current_request
        is_of_tls = self.transport.get_extra_info("ssl_object") is not None
        if self._closed or is_of_tls:
            return False
        if request is None:
            if self._came_at:
                self._refuse(400, "the connection ended before the request's headers were complete")
            return False
        self._keepalive = False
        self._last_word = self.worker.loop.call_later(LAST_WORD_S, self._last_word_overdue)
        self._tell_of_end()
        return True

    def _tell_of_end(self) -> None:
        """Notify the application that the client has disconnected, once the application has read
        the body that arrived."""
        receiver = self._body_receiver
        if self._closed or receiver is None:
            return
        if receiver.buffered or (receiver._complete and not receiver._body_finished):
            self.worker.loop.call_later(BODY_TAKEN_S, self._tell_of_end)
        else:
            receiver.signal_disconnect()

    def _last_word_overdue(self) -> None:
        if self._is_answering:
            self.close()
        elif not self._closed:
            self._refuse(400, "the client closed the connection before the answer")

    def close(self) -> None:
        """Close the connection once all written bytes are sent. No further request is read."""
        self._close_transport()
        self._request_ready.set()  # wakes the connection's task, which sees that it is closed

    def _send_response_start(
        self, status: Any, headers: Any, request: Any, close: bool = False
    ) -> None:
        """Write the head of an answer. If the request's body has not arrived completely, announce
        that the connection closes: gunicorn closes it after the answer, and the client's next
        request would fail."""
        self._is_answering = True
        receiver = self._body_receiver
        close = close or (receiver is not None and not receiver._complete)
        kinds = [value for name, value in headers if name.lower() == b"content-type"]
        self._is_of_lines = any(kind.startswith(LINES) for kind in kinds)
        super()._send_response_start(status, headers, request, close)

    def _send_body(
        self, body: bytes, chunked: bool = False, last: bool = False, size: int | None = None
    ) -> None:
        """Write a part of a body. Each line of JSON is sent as a separate chunk, because some
        clients parse each chunk as one JSON value."""
        if not (self._is_of_lines and chunked and body.count(b"\n") > 1):
            super()._send_body(body, chunked, last, size)
            return
        head, self._response_buffer = self._response_buffer or b"", None
        chunks = [b"%x\r\n%b\r\n" % (len(line), line) for line in body.splitlines(keepends=True)]
        self._safe_write(b"".join((head, *chunks, b"0\r\n\r\n" if last else b"")))

    def _build_http_scope(self, request: Any, sockname: Any, peername: Any) -> Any:
        scope = super()._build_http_scope(request, sockname, peername)
        scope[KEY] = RequestScope(came_at=self._began_at, noted=self._noted)
        return scope

    def _on_headers_complete(self) -> Any:
        self._headers_came()
        self._began_at = self._came_at
        self._is_answering = False
        return super()._on_headers_complete()

    def _on_message_complete(self) -> Any:
        self._came_at = 0.0
        return super()._on_message_complete()

    def _feed_callback_parser(self, data: bytes) -> Any:
        try:
            return super()._feed_callback_parser(data)
        except ValueError as error:  # int() refuses numbers of thousands of digits
            self._refuse(400, f"invalid number in the request's headers: {str(error)[:100]}")
            return False

    def _is_websocket_upgrade(self, request: Any) -> bool:
        return False  # the application answers it, in the dialect of the path

    def _headers_came(self) -> None:
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None

    def _headers_overdue(self) -> None:
        self._headers_due = None
        due_s = self._options.headers_s
        self._refuse(408, f"the request's headers did not arrive within {due_s:g} s")

    def _refuse(self, status: int, message: str, *headers: tuple[str, str]) -> None:
        self._send_error_response(status, message, headers)
        self.close()
