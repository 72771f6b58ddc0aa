"""Every HTTP API that is spoken, by name; nothing else knows which there are.

Pure. A new one is a folder beside the others, with its bodies, its renderer, its table `Api`, and a
line here.
"""

from __future__ import annotations

from collections.abc import Callable

from bus.wire.ids import RequestId
from gateway.dialects.anthropic import ANTHROPIC
from gateway.dialects.api_table import Api, Embeds, ErrorEnvelope, Generates, ReadsPrompt
from gateway.dialects.ollama.api import OLLAMA
from gateway.dialects.openai.api import OPENAI
from gateway.dialects.prompts import PROMPTS
from gateway.dialects.to_come import not_offered, to_come

APIS: tuple[Api, ...] = (OPENAI, OLLAMA, ANTHROPIC, PROMPTS)
DEFAULT_ENVELOPE = OPENAI.envelope
"""That of paths which are in no API."""


def never(_header: str) -> bool:
    """Return False: a request without headers."""
    return False


def envelope_of(path: str, has: Callable[[str], bool] = never) -> ErrorEnvelope:
    """Return the envelope for failures of a path, also of one that is known and not answered; `has`
    says which headers the request has. A path that two APIs have is that of the one whose client
    asks."""
    if (marked := _marked(path, has)) is not None:
        return marked.envelope
    known = to_come(path) or not_offered(path)
    if known is not None:
        return known.envelope
    api = api_of(path, has)
    return DEFAULT_ENVELOPE if api is None else api.envelope


def api_of(path: str, has: Callable[[str], bool] = never) -> Api | None:
    """Return the API that a request is of, by its path or its headers; None for none."""
    owners = (api for api in APIS if path.startswith(api.prefixes))
    return next(owners, None) or _marked(path, has)


def _marked(path: str, has: Callable[[str], bool]) -> Api | None:
    marked = (api for api in APIS if path.startswith(api.marked_prefixes) and has(api.marked_by))
    return next(marked, None)


def asked_at(path: str) -> Generates | Embeds | ReadsPrompt | None:
    """Return what a `POST` of a path asks a model for; None where it asks none."""
    for api in APIS:
        own = path.removeprefix(api.also_under) if api.also_under else path
        for endpoint in api.endpoints:
            if endpoint.path == own and isinstance(endpoint, Generates | Embeds | ReadsPrompt):
                return endpoint
    return None


def request_id_of(answer_id: str) -> RequestId:
    """Return the request that an answer's id names, with an API's prefix or without."""
    for prefix in (prefix for api in APIS for prefix in api.id_prefixes):
        if answer_id.startswith(prefix):
            return RequestId(answer_id.removeprefix(prefix))
    return RequestId(answer_id)
