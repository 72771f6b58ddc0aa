"""Errors and refusals. Each says whose fault it is and what the caller can do.

Pure. Expected refusals (no capacity, unknown model, queue full) are values (`Refusal`), not
exceptions. An exception is for a fault that the caller could not have foreseen.
"""

from __future__ import annotations

from collections.abc import Mapping
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
"""Why a request may end before it is complete."""

FinishReason = Literal["stop", "length", "tool_calls", "cancelled", "memory_pressure"]
"""Why a choice may end without an error. `memory_pressure`: its text is cut off, because a rank of
its runner used more memory than was reserved for the runner."""

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
"""The message that a runner sends if it notices a passed deadline before the gateway does. The
client gets the gateway's own message instead, because the gateway knows more about the request."""


class Refusal(BaseModel):
    """An expected refusal, with the numbers that explain it (`facts`).

    `field` names the request field that is at fault, if any. `retry_after_s` is set if the same
    call may succeed later. `position` is the request's place in a full queue.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: RefusalReason
    message: str
    field: str | None = None
    retry_after_s: float | None = None
    position: int | None = None
    facts: dict[str, Any] = {}


class ShoalError(Exception):
    """The root of all exceptions that shoal raises on purpose."""


class BadMessage(ShoalError):
    """A peer sent bytes that are not a valid message: they are too long, or have an unknown kind or
    a wrong field."""


class AlreadyRunning(ShoalError):
    """Another process of the same service is already running on this node and holds its lock."""


class PortTaken(ShoalError):
    """An address can't be bound. The text has the address and the reason."""


class Unavailable(ShoalError):
    """A service does not answer now. The text names the service, and the error or how long the
    caller waited."""


class OwnerSilent(ShoalError):
    """The process that owns a request, an answer or a piece of work did not answer within
    `waited_s` seconds. `owner` names it for people; `advice` says what to do."""

    def __init__(self, owner: str, waited_s: float, advice: str = "") -> None:
        text = f"{owner} did not answer within {waited_s:g} s"
        super().__init__(f"{text}; {advice}" if advice else text)
        self.waited_s = waited_s


class ConfigError(ShoalError):
    """A setting is wrong. The text has the setting, its source and the accepted values."""


class SettingsUnwritable(ConfigError):
    """The settings file can't be written, although its settings are valid. `is_full`: the disk is
    full."""

    def __init__(self, message: str, *, is_full: bool) -> None:
        super().__init__(message)
        self.is_full = is_full


class BadKey(ShoalError):
    """A cluster key or its file is wrong. The text never repeats any part of a key."""


class WrittenLater(ShoalError):
    """A later version of shoal wrote this state file. The file is intact; this version must not
    change it."""


class Exposed(ShoalError):
    """A socket would be open to other machines without a cluster key."""


class BadRequest(ShoalError):
    """The request is wrong. `field` is the path of the wrong field, as the client's API names
    it."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class ContextOverflow(ShoalError):
    """The prompt (with the requested tokens) does not fit the context."""

    def __init__(self, *, prompt_tokens: int, limit_tokens: int) -> None:
        super().__init__(f"prompt is too long: {prompt_tokens} tokens > {limit_tokens} maximum")
        self.prompt_tokens = prompt_tokens
        self.limit_tokens = limit_tokens


OBJECT, WHOLE, NUMBER, YES_NO = (
    "must be an object",
    "must be a whole number",
    "must be a number",
    "must be true or false",
)
PROBLEMS: Mapping[str, str] = {
    "model_type": OBJECT,
    "model_attributes_type": OBJECT,
    "dict_type": OBJECT,
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "string_type": "must be a string",
    "int_type": WHOLE,
    "int_parsing": WHOLE,
    "int_from_float": WHOLE,
    "float_type": NUMBER,
    "float_parsing": NUMBER,
    "finite_number": "must be a finite number",
    "bool_type": YES_NO,
    "bool_parsing": YES_NO,
    "literal_error": "must be one of {expected}",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} items",
    "too_long": "must have at most {max_length} items",
    "missing": "is required",
    "extra_forbidden": "is not known",
}
"""Texts for pydantic's types of problems, with the names of its context."""


def problem_text(detail: Mapping[str, Any]) -> str:
    """Return what is wrong with a value, from one entry of `ValidationError.errors`. It has no
    subject: the caller names the field."""
    text, context = PROBLEMS.get(detail["type"]), detail.get("ctx", {})
    if text is None:
        return str(detail["msg"]).removeprefix("Value error, ")
    if context.get("min_length") == 1:
        return "must not be empty"
    numbers = {key: f"{value:g}" for key, value in context.items() if isinstance(value, float)}
    return text.format_map({**context, **numbers})


def first_problem(error: ValidationError) -> str:
    """Return the first error that pydantic reports, as `field: problem`."""
    detail = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in detail["loc"]) or "message"
    return f"{where}: {problem_text(detail)}"
