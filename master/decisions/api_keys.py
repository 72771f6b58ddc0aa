"""Commands about API keys: the events or refusals that they lead to.

Pure. A command can identify a key by its id or by its name, because a name never has the form of an
id. A rotated key keeps its id and everything stored under that id.
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
    """Return the event that a command leads to, or a refusal."""
    keys = state.api_keys
    if isinstance(command, AddApiKey):
        return _problem(command.key, keys.values()) or ApiKeyAdded(key=command.key)
    key = keys.get(command.key_id)
    if key is None:
        text = f"there is no API key {command.key_id}"
        return Refusal(reason="unknown_key", message=text, field="key")
    if isinstance(command, RemoveApiKey):
        return ApiKeyRemoved(key_id=key.id)
    if _is_taken(command.hash, keys.values()):
        return _taken_refusal()
    keeps_old = command.old_until_s > 0
    update = {
        "hash": command.hash,
        "old_hash": key.hash if keeps_old else None,
        "old_until_s": command.old_until_s if keeps_old else 0.0,
    }
    return ApiKeyChanged(key=key.model_copy(update=update))


def _problem(key: ApiKey, others: Iterable[ApiKey]) -> Refusal | None:
    others = tuple(others)
    if not KEY_NAME.fullmatch(key.name) or KEY_ID.fullmatch(key.name):
        text = (
            f"{key.name!r} is not a valid API key name: use 1 to 64 letters, digits, dots, "
            "dashes, underscores and @; begin with a letter or digit; avoid the form of an id"
        )
        return Refusal(reason="bad_request", message=text, field="name")
    if not KEY_ID.fullmatch(key.id):
        return Refusal(reason="bad_request", message=f"{key.id!r} is not a valid API key id")
    if any(other.name.casefold() == key.name.casefold() for other in others):
        text = f"an API key {key.name!r} already exists; remove or rotate it first"
        return Refusal(reason="conflict", message=text, field="name")
    if len(others) >= MAX_API_KEYS:
        text = f"there are {len(others)} API keys, which is the limit; remove one first"
        return Refusal(reason="conflict", message=text)
    if any(other.id == key.id for other in others) or _is_taken(key.hash, others):
        return _taken_refusal()
    return None


def _is_taken(hashed: str, keys: Iterable[ApiKey]) -> bool:
    return any(hashed in (key.hash, key.old_hash) for key in keys)


def _taken_refusal() -> Refusal:
    return Refusal(
        reason="conflict", message="another API key has this id or secret; create a new one"
    )
