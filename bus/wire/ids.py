"""Identifiers, as types. They are made once and never reused.

Pure: an id that needs chance is made in `bus.process.identity`; here ids are only composed
and taken apart. A request id names the node and the HTTP process that own it, so that
any gateway process can pass a cancel or a look-up on to its owner.
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
"""One life of one process: new at every start, so that old messages can be told from new."""
ProcessName = NewType("ProcessName", str)
"""A process within its node, as supervisord names it: `gateway`, `runner:03`."""
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
    """Return `req-<node>-<http process>-<boot>-<count>`, unique for as long as node ids are."""
    return RequestId(f"req-{node}-{http_process}-{boot}-{count:x}")


def owner_of(request: RequestId) -> tuple[NodeId, str] | None:
    """Return the (node, http process) that owns a request, None when the id is not one of ours."""
    parts = request.split("-")
    if len(parts) != 5 or parts[0] != "req":
        return None
    return NodeId(parts[1]), parts[2]


def is_model_id(text: str) -> bool:
    """Return whether `text` may name a model: no path tricks, at most 200 characters."""
    return len(text) <= 200 and ".." not in text and MODEL_ID_PATTERN.fullmatch(text) is not None


def sayable(name: str) -> str:
    """Return a model's id like this name, which may be any folder's; an id stays as it is."""
    if is_model_id(name):
        return name
    plain = unicodedata.normalize("NFKD", name.translate(_PLAIN)).encode("ascii", "ignore").decode()
    owner, slash, rest = plain.partition("/")
    parts = [owner, rest] if slash else [owner]
    parts = [re.sub(r"\.{2,}", ".", _NO_NAME.sub("-", part)) for part in parts]
    half = _SLUG_CHARACTERS // 2
    return "/".join(part.strip("-._")[:half].strip("-._") or "model" for part in parts)


def ids_for(names: Iterable[str]) -> dict[str, ModelId]:
    """Return the model's id that each name goes by: itself where it is one, else one like it,
    with a few digits of its hash where another of the names would have that too."""
    given = set(names)
    found = {name: ModelId(name) for name in given if is_model_id(name)}
    odd = {name: sayable(name) for name in given - found.keys()}
    count = Counter([*(name.casefold() for name in found), *map(str.casefold, odd.values())])
    for name, slug in odd.items():
        if count[slug.casefold()] > 1:
            digits = sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
            slug = f"{slug}-{digits}"
        found[name] = ModelId(slug)
    return found
