"""Identifiers, as types. Each id is made once and never reused.

Pure: `bus.process.identity` makes ids that need randomness; this module only composes and parses
them. A request id names the node and the HTTP process that own the request. So any gateway process
can forward a cancel or a query to the owner.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from hashlib import sha256
from typing import NewType

NodeId = NewType("NodeId", str)
Boot = NewType("Boot", str)
"""The id of one run of a process. It is new at every start, to tell old messages from new ones."""
ProcessName = NewType("ProcessName", str)
"""A process within its node, by its name in supervisord: `gateway`, `runner:03`."""
InstanceId = NewType("InstanceId", str)
ModelId = NewType("ModelId", str)
RequestId = NewType("RequestId", str)
CommandId = NewType("CommandId", str)
TokenId = NewType("TokenId", int)

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_PLAIN = str.maketrans(
    {"ß": "ss", "æ": "ae", "Æ": "AE", "ø": "o", "Ø": "O", "œ": "oe", "ł": "l", "đ": "d", "þ": "th"}
)
_SLUG_CHARACTERS = 180
MODEL_ID_PATTERN = re.compile(rf"{_NAME}(?:/{_NAME})?(?::[A-Za-z0-9._-]+)?")


def request_id(node: NodeId, http_process: str, boot: Boot, count: int) -> RequestId:
    """Return `req-<node>-<http process>-<boot>-<count>`, which is unique because node ids are."""
    return RequestId(f"req-{node}-{http_process}-{boot}-{count:x}")


def owner_of(request: RequestId) -> tuple[NodeId, str] | None:
    """Return the (node, HTTP process) that owns a request, from its id; None if `request` is no
    request id of shoal."""
    parts = request.split("-")
    if len(parts) != 5 or parts[0] != "req":
        return None
    return NodeId(parts[1]), parts[2]


def is_model_id(text: str) -> bool:
    """Return whether `text` is a valid model id: at most 200 characters, no `..`."""
    return len(text) <= 200 and ".." not in text and MODEL_ID_PATTERN.fullmatch(text) is not None


def sayable(name: str) -> str:
    """Return a valid model id that resembles a folder's name; characters that model ids cannot have
    are replaced. A name that is a valid id is returned unchanged."""
    if is_model_id(name):
        return name
    plain = unicodedata.normalize("NFKD", name.translate(_PLAIN)).encode("ascii", "ignore").decode()
    owner, slash, rest = plain.partition("/")
    parts = [owner, rest] if slash else [owner]
    parts = [re.sub(r"\.{2,}", ".", _NO_NAME.sub("-", part)) for part in parts]
    half = _SLUG_CHARACTERS // 2
    return "/".join(part.strip("-._")[:half].strip("-._") or "model" for part in parts)


def ids_for(names: Iterable[str]) -> dict[str, ModelId]:
    """Return the model id for each name. A valid id stays itself. Another name becomes a similar
    id, with 8 digits of its hash if the id is not unique among these names."""
    distinct = set(names)
    ids = {name: ModelId(name) for name in distinct if is_model_id(name)}
    odd = {name: sayable(name) for name in distinct - ids.keys()}
    count = Counter([*(name.casefold() for name in ids), *map(str.casefold, odd.values())])
    for name, slug in odd.items():
        if count[slug.casefold()] > 1:
            digits = sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
            slug = f"{slug}-{digits}"
        ids[name] = ModelId(slug)
    return ids
