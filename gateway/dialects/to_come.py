"""Paths that clients know but shoal does not serve. Their 404 says why, unlike the 404 of a
misspelt path.

Pure. `TO_COME` has planned paths, which `docs/plans.md` lists. Delete a row once shoal serves its
path. `NOT_OFFERED` has paths that no engine supports, and paths that shoal will never offer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from gateway.dialects.anthropic import ANTHROPIC
from gateway.dialects.api_table import ErrorEnvelope
from gateway.dialects.faults import HttpFault
from gateway.dialects.ollama.api import OLLAMA
from gateway.dialects.openai.api import OPENAI

CHAT = "use /v1/chat/completions"
RANK = "use /v1/rerank"
TEXT_ALONE = "shoal serves only text models, embedding models and rerankers"
ASK_A_MODEL = f"ask a model: {CHAT} with a response_format"
ONE_BY_ONE = "submit each of its requests to /v1/jobs"
HISTORY = "send the whole conversation each time, to /v1/chat/completions"


class ToCome(NamedTuple):
    """A planned path, including all paths below it. The row has the purpose of the path, what
    clients can use today, and the form of errors."""

    offers: str
    instead: str
    envelope: ErrorEnvelope


TO_COME: Mapping[str, ToCome] = {
    "/v1/responses/compact": ToCome(
        "compacting a conversation", "send the items again", OPENAI.envelope
    ),
    "/v1/batches": ToCome("batches", ONE_BY_ONE, OPENAI.envelope),
    "/v1/messages/batches": ToCome("batches", ONE_BY_ONE, ANTHROPIC.envelope),
}


class NotOffered(NamedTuple):
    """An unsupported path, including all paths below it. The row has the error code, the reason,
    what clients can use instead, and the form of errors."""

    code: Literal["no_such_engine", "not_offered"]
    why: str
    instead: str
    envelope: ErrorEnvelope


def _no_engine(what: str, instead: str = TEXT_ALONE) -> NotOffered:
    return NotOffered("no_such_engine", f"no engine supports {what}", instead, OPENAI.envelope)


def _not_so(why: str, instead: str) -> NotOffered:
    return NotOffered("not_offered", why, instead, OPENAI.envelope)


def _not_kept(what: str, instead: str = HISTORY) -> NotOffered:
    return NotOffered("not_offered", f"{what} are not stored", instead, OPENAI.envelope)


NOT_OFFERED: Mapping[str, NotOffered] = {
    "/v1/audio": _no_engine("speech and audio"),
    "/v1/realtime": _no_engine("speech and audio"),
    "/v1/images": _no_engine("images"),
    "/bench/images": _no_engine("images"),
    "/v1/videos": _no_engine("videos"),
    "/v1/moderations": _no_engine("moderation", ASK_A_MODEL),
    "/v1/fine_tuning": _no_engine(
        "training", "train it elsewhere and put the model's folder into <data>/models"
    ),
    "/v1/files": _not_kept("files"),
    "/v1/uploads": _not_kept("files"),
    "/v1/vector_stores": _not_kept("files"),
    "/v1/assistants": _not_kept("assistants"),
    "/v1/threads": _not_kept("threads"),
    "/v1/complete": NotOffered(
        "not_offered",
        "prompts are sent as messages",
        "use /v1/messages",
        ANTHROPIC.envelope,
    ),
    "/v1/skills": NotOffered(
        "not_offered",
        "this server runs only models",
        "give the model tools that the client runs",
        ANTHROPIC.envelope,
    ),
    "/v1/score": _not_so("scores are computed for one query and its documents", RANK),
    "/score": _not_so("scores are computed for one query and its documents", RANK),
    "/api/push": NotOffered(
        "not_offered",
        "models are never pushed to a registry",
        "copy the model's folder; `shoal show` prints its path",
        OLLAMA.envelope,
    ),
    "/api/blobs": NotOffered(
        "not_offered",
        "files cannot be uploaded over HTTP",
        "put a model's folder into <data>/models, or into Hugging Face's cache",
        OLLAMA.envelope,
    ),
}


def to_come(path: str) -> ToCome | None:
    """Return the plan for a path; None if nothing is planned."""
    return next((row for prefix, row in TO_COME.items() if _is_below(path, prefix, row)), None)


def not_offered(path: str) -> NotOffered | None:
    """Return why a path that clients know is not offered; None for any other path."""
    return next((row for prefix, row in NOT_OFFERED.items() if _is_below(path, prefix, row)), None)


def _is_below(path: str, prefix: str, row: ToCome | NotOffered) -> bool:
    own = path.removeprefix(OLLAMA.also_under) if row.envelope is OLLAMA.envelope else path
    return own == prefix or own.startswith(f"{prefix}/")


def absence(path: str) -> HttpFault | None:
    """Return the error for a path that clients know but shoal does not serve; None for any other
    path."""
    planned, never = to_come(path), not_offered(path)
    if planned is not None:
        return not_there_yet(path, planned)
    return None if never is None else not_here(path, never)


def not_there_yet(path: str, row: ToCome) -> HttpFault:
    """Return the 404 for a planned path. Clients that try several paths then try the next."""
    text = f"{path} is not available yet, but {row.offers} will be; {row.instead}"
    return HttpFault(404, "not_there_yet", text)


def not_here(path: str, row: NotOffered) -> HttpFault:
    """Return the fault for a path that is not offered. Clients do not retry a 404."""
    return HttpFault(404, row.code, f"{path} is not supported: {row.why}; {row.instead}")
