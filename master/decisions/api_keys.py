"""Commands about API keys to events, or to a refusal.

Pure. A name and a secret stand for one key; a name is never what an id looks like, so that either
may be said. A rotated key keeps its id, and with it all that is noted or kept by it.
"""

from __future__ import annotations

from collections.abc import Iterable

from bus.replica.state import ClusterState
from bus.wire.api_keys import KEY_ID, KEY_NAME, MAX_API_KEYS, ApiKey
from bus.wire.errors import Refusal
from bus.wire.messages.commands import AddApiKey, RemoveApiKey, RotateApiKey
from bus.wire.messages.events import ApiKeyAdded, ApiKeyChanged, ApiKeyRemoved


def decide_api_key(
    command: AddApiKey | RotateApiKey | RemoveApiKey, state: ClusterState
) -> ApiKeyAdded | ApiKeyChanged | ApiKeyRemoved | Refusal:
    """Return the event of a command, or a refusal."""
    keys = state.api_keys
    if isinstance(command, AddApiKey):
        return _problem(command.key, keys.values()) or ApiKeyAdded(key=command.key)
    known = keys.get(command.key_id)
    if known is None:
        text = f"there is no API key {command.key_id}"
        return Refusal(reason="unknown_key", message=text, field="key")
    if isinstance(command, RemoveApiKey):
        return ApiKeyRemoved(key_id=known.id)
    if _is_taken(command.hash, keys.values()):
        return _taken()
    kept = command.old_until_s > 0
    update = {
        "hash": command.hash,
        "old_hash": known.hash if kept else None,
        "old_until_s": command.old_until_s if kept else 0.0,
    }
    return ApiKeyChanged(key=known.model_copy(update=update))


def _problem(key: ApiKey, others: Iterable[ApiKey]) -> Refusal | None:
    others = tuple(others)
    if not KEY_NAME.fullmatch(key.name) or KEY_ID.fullmatch(key.name):
        text = (
            f"{key.name!r} cannot be the name of an API key: 1 to 64 letters, digits, dots, "
            "dashes, underscores and @, a letter or digit first, and not the form of an id"
        )
        return Refusal(reason="bad_request", message=text, field="name")
    if not KEY_ID.fullmatch(key.id):
        return Refusal(reason="bad_request", message=f"{key.id!r} is no id of an API key")
    if any(one.name.casefold() == key.name.casefold() for one in others):
        text = f"there is an API key {key.name!r} already; remove it first, or rotate it"
        return Refusal(reason="conflict", message=text, field="name")
    if len(others) >= MAX_API_KEYS:
        text = f"{len(others)} API keys are known, as many as may be; remove one first"
        return Refusal(reason="conflict", message=text)
    if any(one.id == key.id for one in others) or _is_taken(key.hash, others):
        return _taken()
    return None


def _is_taken(hashed: str, keys: Iterable[ApiKey]) -> bool:
    return any(hashed in (one.hash, one.old_hash) for one in keys)


def _taken() -> Refusal:
    return Refusal(reason="conflict", message="an API key has this id or secret; make another")
