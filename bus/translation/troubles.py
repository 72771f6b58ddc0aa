"""The reasons why a request or an answer cannot be translated: a field of the request, a fault of
the server, or the server's content filter. Pure."""

from __future__ import annotations

from bus.wire.errors import ShoalError


class NotCarried(ShoalError):
    """The request needs a field that the server does not support. `field`: the field's path in the
    client's terms; `why`: the reason, without the field."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.why = why


class BrokenStream(ShoalError):
    """The server's stream is not valid or incomplete. `text` says what is wrong, and names the
    server."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Filtered(ShoalError):
    """The server refused to answer. `reason`: its own word for the refusal."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name} refused to answer ({reason})")
        self.reason = reason
