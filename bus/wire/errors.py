"""What can go wrong, said once: whose fault it is and what to do now.

Pure. Expected refusals (no capacity, unknown model, queue full) are values (`Refusal`),
not exceptions. Exceptions are for what the caller of a function could not have known.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

FailReason = Literal[
    "overloaded",
    "context_length",
    "model_unavailable",
    "runner_lost",
    "deadline",
    "bad_request",
    "memory_pressure",
    "internal",
]
"""How a request may end without finishing."""

FinishReason = Literal["stop", "length", "tool_calls", "cancelled", "memory_pressure"]
"""How a choice may end well; after `memory_pressure` its text is cut, for a rank of its runner took
more memory than it was promised."""

RefusalReason = Literal[
    "queue_full",
    "context_length",
    "bad_request",
    "draining",
    "not_ready",
    "wrong_generation",
    "unknown_model",
    "no_capacity",
    "insufficient_memory",
    "disk_full",
    "weights_unavailable",
    "unsupported",
    "not_holder",
    "no_majority",
    "protocol",
    "conflict",
    "unknown_instance",
    "unknown_node",
    "unknown_key",
    "unknown_lease",
    "pending",
]


TIMED_OUT = "the request's deadline passed"
"""What a runner says of a deadline that it sees come first; the gateway, which knows what was
asked for, tells the client."""


class Refusal(BaseModel):
    """A 'no' that was to be expected, with the numbers that explain it.

    `field` names the offending request field where there is one. `retry_after_s` is set
    when the same call may succeed later; `position` is the place in a full queue.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: RefusalReason
    message: str
    field: str | None = None
    retry_after_s: float | None = None
    position: int | None = None
    facts: dict[str, Any] = {}


class ShoalError(Exception):
    """The root of everything that shoal raises on purpose."""


class BadMessage(ShoalError):
    """A peer sent bytes that are not one of our messages: too big, unknown kind, wrong field."""


class AlreadyRunning(ShoalError):
    """Another process holds the lock of this role."""


class PortTaken(ShoalError):
    """An address cannot be bound; the text names it and says why."""


class Unavailable(ShoalError):
    """What was asked cannot be reached now; the wait that ran out is named."""


class ConfigError(ShoalError):
    """A setting is wrong; the text names the setting, its source and what it accepts."""


class SettingsUnwritable(ConfigError):
    """The file of settings cannot be written; no setting is wrong. `is_full`: the disk is."""

    def __init__(self, message: str, *, is_full: bool) -> None:
        super().__init__(message)
        self.is_full = is_full


class BadKey(ShoalError):
    """A cluster key or its file is wrong. The text never repeats any part of a key."""


class WrittenLater(ShoalError):
    """A file of the state is whole, and a later version of shoal wrote it. Nothing touches it."""


class Exposed(ShoalError):
    """A socket would be open to other machines without a cluster key."""


class BadRequest(ShoalError):
    """The caller's request is at fault. `field` is the path of the field in the caller's terms."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class ContextOverflow(ShoalError):
    """The prompt (with the tokens it asks for) does not fit the context."""

    def __init__(self, *, prompt_tokens: int, limit_tokens: int) -> None:
        super().__init__(f"prompt is too long: {prompt_tokens} tokens > {limit_tokens} maximum")
        self.prompt_tokens = prompt_tokens
        self.limit_tokens = limit_tokens


def first_problem(error: ValidationError) -> str:
    """Return the first thing that pydantic found, as `field: problem`."""
    detail = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in detail["loc"]) or "message"
    return f"{where}: {detail['msg']}"
