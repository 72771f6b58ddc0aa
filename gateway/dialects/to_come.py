"""Paths that clients know and that are not answered yet: they say so, unlike a misspelt path.

Pure. A row goes when its path is answered. `docs/plans.md` says what is to come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gateway.dialects.anthropic import ANTHROPIC
from gateway.dialects.dialect import ErrorEnvelope
from gateway.dialects.faults import HttpFault
from gateway.dialects.ollama.api import OLLAMA
from gateway.dialects.openai.api import OPENAI

CHAT = "use /v1/chat/completions"


class ToCome(NamedTuple):
    """What a path, and every path below it, would offer; what to use today; whose errors it has."""

    offers: str
    instead: str
    envelope: ErrorEnvelope


TO_COME: Mapping[str, ToCome] = {
    "/v1/responses": ToCome("OpenAI's responses", CHAT, OPENAI.envelope),
    "/v1/embeddings": ToCome("embeddings", "shoal has text models alone", OPENAI.envelope),
    "/v1/images": ToCome("images", "shoal has text models alone", OPENAI.envelope),
    "/v1/batches": ToCome("jobs", f"{CHAT} with x_priority 'batch'", OPENAI.envelope),
    "/v1/messages/batches": ToCome(
        "jobs", "use /v1/messages with x_priority 'batch'", ANTHROPIC.envelope
    ),
    "/api/embed": ToCome("embeddings", "shoal has text models alone", OLLAMA.envelope),
    "/api/embeddings": ToCome("embeddings", "shoal has text models alone", OLLAMA.envelope),
    "/api/pull": ToCome(
        "fetching models from the internet",
        "put a model's folder into <data>/models, or into Hugging Face's cache",
        OLLAMA.envelope,
    ),
    "/dashboard": ToCome(
        "a page that shows the cluster", "see `shoal status`, or GET /state", OPENAI.envelope
    ),
}


def to_come(path: str) -> ToCome | None:
    """Return what will be at a path; None where nothing is planned."""
    plain = path.removeprefix(OLLAMA.also_under)
    for known, row in TO_COME.items():
        asked = plain if row.envelope is OLLAMA.envelope else path
        if asked == known or asked.startswith(f"{known}/"):
            return row
    return None


def not_there_yet(path: str, row: ToCome) -> HttpFault:
    """Return the 404 for a path that is to come: clients that try several take the next one."""
    text = f"{path} is not there yet: {row.offers} will be; {row.instead}"
    return HttpFault(404, "not_there_yet", text)
