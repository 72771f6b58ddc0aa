"""Every HTTP API that is spoken, by name; nothing else knows which there are.

Pure. A new one is a folder beside the others, with its bodies, its renderer, its table `Api`, and a
line here.
"""

from __future__ import annotations

from bus.wire.ids import RequestId
from gateway.dialects.anthropic import ANTHROPIC
from gateway.dialects.dialect import Api, ErrorEnvelope
from gateway.dialects.ollama.api import OLLAMA
from gateway.dialects.openai.api import OPENAI
from gateway.dialects.to_come import not_offered, to_come

APIS: tuple[Api, ...] = (OPENAI, OLLAMA, ANTHROPIC)
DEFAULT_ENVELOPE = OPENAI.envelope
"""That of paths which are in no API."""


def envelope_of(path: str) -> ErrorEnvelope:
    """Return the envelope for failures of a path, also of one that is known and not answered."""
    known = to_come(path) or not_offered(path)
    if known is not None:
        return known.envelope
    found = (api.envelope for api in APIS if path.startswith(api.prefixes))
    return next(found, DEFAULT_ENVELOPE)


def request_id_of(answer_id: str) -> RequestId:
    """Return the request that an answer's id names, with an API's prefix or without."""
    for prefix in (prefix for api in APIS for prefix in api.id_prefixes):
        if answer_id.startswith(prefix):
            return RequestId(answer_id.removeprefix(prefix))
    return RequestId(answer_id)
