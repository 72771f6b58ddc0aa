"""The errors that a verb shows, each with its remedy and exit code.

Pure. Exit codes: 0 success; 1 failure or problems found; 2 invalid command line; 3 no node answers;
4 not found; 5 the node refused for now; 130 interrupted.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from bus.wire.errors import ShoalError
from gateway.cli.exit_codes import INTERRUPTED

FAILED = 1
USAGE = 2
NO_NODE = 3
NOT_FOUND = 4
REFUSED = 5
WORDS = {
    FAILED: "failed",
    USAGE: "usage",
    NO_NODE: "no_node",
    NOT_FOUND: "not_found",
    REFUSED: "refused",
    INTERRUPTED: "interrupted",
}
"""Names of exit codes in `--json`."""


class CliError(ShoalError):
    """A failure that the user can act on, shown without a traceback.

    `remedy` says what to do, `details` holds evidence (the end of a log), `code` is the exit code.
    `error_code` is the code of the node's HTTP error, empty for other failures.
    """

    def __init__(
        self, message: str, *, remedy: str = "", details: str = "", code: int = FAILED
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.details = details
        self.code = code
        self.error_code = ""


def no_node(url: str, why: str) -> CliError:
    """Return the error for an address where no node answers."""
    return CliError(
        f"no node answers at {url} ({why})",
        remedy="start a node with `shoal up`, or find the problem with `shoal doctor`",
        code=NO_NODE,
    )


def untrusted(url: str, why: str) -> CliError:
    """Return the error for an untrusted certificate. `why` is OpenSSL's message."""
    reason = why.partition("certificate verify failed: ")[2].partition(" (_ssl")[0] or why
    return CliError(
        f"the certificate of {url} is not trusted ({reason})",
        remedy="pass the certificate or its issuer's with `--ca FILE` (or SSL_CERT_FILE)",
    )


def at_home(home: Path | None) -> str:
    """Return the `--home` option for a command line; empty for the default home (None)."""
    return "" if home is None else f" --home {shlex.quote(str(home))}"


def no_node_in(home: Path, *, chosen: bool) -> CliError:
    """Return the error for a home whose node does not run. `chosen`: it is not the default home."""
    remedy = f"start a node with `shoal up{at_home(home if chosen else None)}`"
    return CliError(f"no node runs in {home}", remedy=remedy, code=NO_NODE)


LISTED_BY = {
    "model_not_found": "list the models with `shoal ls`",
    "instance_not_found": "list the instances with `shoal ps`",
    "node_not_found": "list the nodes with `shoal nodes`",
    "pull_not_found": "list the pulls with `shoal pulls`",
    "key_not_found": "list the keys with `shoal apikey ls`",
    "card_not_found": "write a card with `shoal card edit MODEL`",
}
"""Remedies for not-found errors, by error code."""


AGAIN = "the downloaded part is kept: the same `shoal pull` resumes"
PULLED_IN_VAIN = {
    "hub_unauthorized": "follow the message, then try again",
    "hub_gated": "follow the message, then try again",
    "hub_model_not_found": "search for the model at https://huggingface.co/models?library=mlx",
    "hub_revision_not_found": "omit the revision to get the newest",
    "hub_rate_limited": f"wait, then try again; {AGAIN}",
    "hub_unreachable": (
        f"check that this node can reach the model hub (huggingface.co), then try again; {AGAIN}"
    ),
    "hub_spoilt": (
        "pull again; if that fails, report the failure to the hub or to the admin of your proxy"
    ),
    "pull_paused": "resume the pull with `shoal pulls resume MODEL`",
    "pull_cancelled": "the same `shoal pull` starts it again",
    "hub_changed": "pull again; if it fails again, use another revision",
    "model_too_large": "see each node with `--dry-run`, or pull the model anyway with `--anyway`",
    "insufficient_storage": (
        f"free disk space (`shoal rm MODEL`), or pull to another node with `--to`; {AGAIN}"
    ),
    "offline": "set offline = false in shoal.toml, or copy the model's folder into <data>/models",
}
"""Remedies for a failed pull or a failed search on the hub, by error code."""
OF_CARDS = ("card_kept", "card_changed")
"""Error codes of refused changes to model cards. Messages with these codes already contain the
remedy."""


def refusal(status: int, message: str, error_code: str = "") -> CliError:
    """Return the CliError for an HTTP error of the node, with remedy and exit code."""
    error = _refusal(status, message, error_code)
    error.error_code = error_code
    return error


def _refusal(status: int, message: str, error_code: str) -> CliError:
    if error_code in PULLED_IN_VAIN:
        is_refused = status in (409, 429) or error_code == "model_too_large"
        code = NOT_FOUND if status == 404 else REFUSED if is_refused else FAILED
        return CliError(message, remedy=PULLED_IN_VAIN[error_code], code=code)
    if error_code in OF_CARDS:
        return CliError(message, code=REFUSED)
    if status in (401, 403):
        remedy = (
            "set SHOAL_API_KEY to an API key of the node, or to the content of its "
            "`http-token` file"
        )
        return CliError(message, remedy=remedy, code=FAILED)
    if status == 404:
        return CliError(message, remedy=LISTED_BY.get(error_code, ""), code=NOT_FOUND)
    if status == 409:
        return CliError(message, remedy="see `shoal ps` for the models in use", code=REFUSED)
    if status in (408, 429, 503, 504):
        return CliError(message, remedy="try again in a moment; see `shoal ps`", code=REFUSED)
    if status == 507:
        return CliError(message, remedy="unload a model with `shoal stop`", code=REFUSED)
    return CliError(message, remedy="see `shoal logs gateway`" if status >= 500 else "")


def broken_model(message: str) -> CliError:
    """Return the error for a model that the node no longer retries to load; `message` says why."""
    return CliError(
        message, remedy="correct the cause, then `shoal load MODEL`; see `shoal logs worker`"
    )
