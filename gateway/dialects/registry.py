"""All HTTP APIs by name. No other module lists them.

Pure. To add an API, write a package like those of the other APIs, with bodies, a renderer and a
table of the type `Api`. Then add a line to `APIS`.
"""

from __future__ import annotations

from collections.abc import Callable

from bus.wire.ids import RequestId
from gateway.dialects.anthropic import ANTHROPIC
from gateway.dialects.api_table import Api, Embeds, ErrorEnvelope, Generates, ReadsPrompt
from gateway.dialects.ollama.api import OLLAMA
from gateway.dialects.openai.api import OPENAI
from gateway.dialects.prompts import PROMPTS
from gateway.dialects.reranking import RERANKING
from gateway.dialects.to_come import not_offered, to_come

APIS: tuple[Api, ...] = (OPENAI, OLLAMA, ANTHROPIC, PROMPTS, RERANKING)
DEFAULT_ENVELOPE = OPENAI.envelope
"""The form of errors at paths that belong to no API."""
HAVE_ID_HEADERS = tuple(
    prefix for api in APIS if api.id_header for prefix in (*api.prefixes, *api.marked_prefixes)
)
"""The beginnings of all paths whose API may have a header of its own for the request id."""


def never(_header: str) -> bool:
    """Return False: the request has no such header. For callers that have no request."""
    return False


def envelope_of(path: str, has: Callable[[str], bool] = never) -> ErrorEnvelope:
    """Return the form of errors at a path, including planned and unsupported paths (`to_come`).
    `has` reports whether the request has a header. If two APIs share the path, the headers
    decide."""
    if (marked := _marked(path, has)) is not None:
        return marked.envelope
    row = to_come(path) or not_offered(path)
    if row is not None:
        return row.envelope
    api = api_of(path, has)
    return DEFAULT_ENVELOPE if api is None else api.envelope


def api_of(path: str, has: Callable[[str], bool] = never) -> Api | None:
    """Return the API of a request, by its path or else by its headers; None if it belongs to no
    API."""
    owners = (api for api in APIS if path.startswith(api.prefixes))
    return next(owners, None) or _marked(path, has)


def _marked(path: str, has: Callable[[str], bool]) -> Api | None:
    marked = (api for api in APIS if path.startswith(api.marked_prefixes) and has(api.marked_by))
    return next(marked, None)


def endpoint_at(path: str) -> Generates | Embeds | ReadsPrompt | None:
    """Return the endpoint at which a model answers a `POST` to this path; None if there is no such
    endpoint."""
    for api in APIS:
        own = path.removeprefix(api.also_under) if api.also_under else path
        for endpoint in api.endpoints:
            if endpoint.path == own and isinstance(endpoint, Generates | Embeds | ReadsPrompt):
                return endpoint
    return None


def request_id_of(answer_id: str) -> RequestId:
    """Return the request id that an answer's id contains, with or without an API's prefix."""
    for prefix in (prefix for api in APIS for prefix in api.id_prefixes):
        if answer_id.startswith(prefix):
            return RequestId(answer_id.removeprefix(prefix))
    return RequestId(answer_id)
