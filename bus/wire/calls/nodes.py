"""Calls that examine or change a node. Pure.

Some answers contain a document of the HTTP API. It is sent as the JSON bytes that the node's own
HTTP route returns.
"""

from __future__ import annotations

from pydantic import Field

from bus.wire.ids import RequestId
from bus.wire.messages.control import AskDiagnosis
from bus.wire.messages.wire import Message

Value = bool | int | float | str | list[str]
"""The value of a setting."""


class ReadSettings(Message):
    """Read the settings in force."""


class ChangeSettings(Message):
    """Change settings in the node's `shoal.toml`: set those of `put`, remove those of `drop`."""

    put: dict[str, Value] = {}
    drop: tuple[str, ...] = ()


class SettingsRead(Message):
    """The settings in force, secrets masked. `why`: why they could not be read or changed; empty if
    they were."""

    values: dict[str, Value | None]
    why: str = ""


class RestartServices(Message):
    """Restart services of the node; `services` empty: all of them."""

    services: tuple[str, ...] = ()


class Restarting(Message):
    """The services that will restart, in that order."""

    services: tuple[str, ...]


class ReadNode(Message):
    """Read the document of `GET /v1/diagnostics/node`."""


class ReadRunners(Message):
    """Read the running and recently ended runners of the node, with their flight recorders (their
    last steps)."""


class Document(Message):
    """A document of the HTTP API, as JSON."""

    content: bytes


class Examine(Message):
    """Examine a process of the node: take its stacks or a profile, within `within_s` seconds."""

    question: AskDiagnosis
    within_s: float = Field(gt=0, le=600)


class Examined(Message):
    """The stacks or the profile, in the format that `content_type` names."""

    content_type: str
    content: bytes


class CancelAtRunner(Message):
    """Let a runner end a request, even if the gateway that sent it is gone."""

    runner: str
    request: RequestId


class TakeCapture(Message):
    """Start the diagnostic capture `name` of the node, or fetch it once it is ready."""

    name: str


class Capture(Message):
    """The capture as a tar.gz; empty while it is not ready."""

    content: bytes = b""


class ForgetCapture(Message):
    """Delete the capture `name`, because it has been fetched."""

    name: str
