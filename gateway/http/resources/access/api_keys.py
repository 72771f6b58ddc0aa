"""Talks to clients about the cluster's API keys: create, list, rotate and delete them.

This process creates the secret of a key and sends it only in the answer. The command to the leader
has only the secret's hash. The answer is sent once this process applies the change.
"""

from __future__ import annotations

from falcon.asgi import Request, Response
from pydantic import Field
from typing_extensions import TypedDict

from bus.process.clock import wall
from bus.process.identity import new_api_key, new_name
from bus.wire.api_keys import ApiKey, KeyLimits, Scope
from bus.wire.messages.commands import AddApiKey, RemoveApiKey, RotateApiKey
from gateway.access import hashed
from gateway.cluster import Cluster
from gateway.dialects.body import Closed
from gateway.dialects.faults import HttpFaultRaised, key_not_found
from gateway.http.middleware import Resource, answer_json
from gateway.http.resources.instances import CommandDone, acknowledgement

LONGEST_S = 100 * 365 * 86_400.0
LONGEST_GRACE_S = 30 * 86_400.0
_UNSTORED = ("cache-control", "no-store")


class NewKeyBody(Closed):
    """`POST /apikeys`; a missing limit means no limit."""

    name: str = Field(min_length=1, max_length=64)
    scope: Scope = "inference"
    requests_per_minute: int | None = Field(default=None, ge=1, le=1_000_000)
    concurrent: int | None = Field(default=None, ge=1, le=1_000_000)
    tokens_per_day: int | None = Field(default=None, ge=1, le=1_000_000_000_000)
    expires_in_s: float | None = Field(default=None, gt=0.0, le=LONGEST_S)


class RotationBody(Closed):
    """`POST /apikeys/{key}/rotate`; the old secret stays valid for `grace_s`."""

    grace_s: float = Field(default=0.0, ge=0.0, le=LONGEST_GRACE_S)


class KeyUseTold(TypedDict):
    """A key's running requests, its requests in the last minute, and its tokens of this day."""

    running: int
    requests: int
    tokens: int


class KeyTold(TypedDict):
    """An API key without its secret; null means no limit, or no value."""

    id: str
    name: str
    scope: Scope
    requests_per_minute: int | None
    concurrent: int | None
    tokens_per_day: int | None
    made_at_s: float
    expires_at_s: float | None
    expired: bool
    old_until_s: float | None
    use: KeyUseTold
    used_at_s: float | None


class AskedForKeys(TypedDict):
    """Whether a node requires API keys, and how many keys its settings have."""

    asked_for: bool
    in_settings: int


class KeysAnswer(AskedForKeys):
    """All keys, ordered by name."""

    keys: list[KeyTold]


class RotatedKey(KeyTold, CommandDone):
    """A key and its new secret."""

    key: str


class NewKey(RotatedKey):
    """A new key, its secret, and whether the node required keys before."""

    was_asked_for: bool


class RemovedKey(AskedForKeys, CommandDone):
    """A deleted key."""

    id: str
    name: str


class KeyList(Resource):
    """`/apikeys`."""

    async def on_get(self, req: Request, resp: Response) -> None:
        """Answer with all keys, ordered by name, their limits and their use, without hashes."""
        cluster = self.cluster
        keys = sorted(cluster.api_keys.book.keys.values(), key=lambda key: key.name.casefold())
        shown = [_fields(cluster, key) for key in keys]
        answer: KeysAnswer = {"keys": shown, **_key_demand(cluster)}
        answer_json(resp, answer)

    async def on_post(self, req: Request, resp: Response) -> None:
        """Create a key, and answer with it and its secret."""
        cluster, body = self.cluster, await self.read(req, NewKeyBody)
        was_asked_for = _key_demand(cluster)["asked_for"]
        secret, now_s = new_api_key(), wall()
        lasts_s = body.expires_in_s
        key = ApiKey(
            id=new_name("key"),
            name=body.name,
            hash=hashed(secret),
            scope=body.scope,
            limits=KeyLimits(
                requests_per_minute=body.requests_per_minute,
                concurrent=body.concurrent,
                tokens_per_day=body.tokens_per_day,
            ),
            made_at_s=round(now_s, 3),
            expires_at_s=None if lasts_s is None else round(now_s + lasts_s, 3),
        )
        answer = await cluster.command(AddApiKey(command_id=cluster.command_id(), key=key))
        await cluster.noticed(answer)
        resp.set_header(*_UNSTORED)
        new_key: NewKey = {
            **_fields(cluster, key),
            "key": secret,
            "was_asked_for": was_asked_for,
            **acknowledgement(answer),
        }
        answer_json(resp, new_key)


class KeyResource(Resource):
    """`/apikeys/{key}`; `key` is an id or a name."""

    async def on_delete(self, req: Request, resp: Response, key: str) -> None:
        """Delete the key, and answer once this process refuses it. 404 for an unknown key."""
        cluster, removed = self.cluster, _named(self.cluster, key)
        command = RemoveApiKey(command_id=cluster.command_id(), key_id=removed.id)
        answer = await cluster.command(command)
        await cluster.noticed(answer)
        removal: RemovedKey = {
            "id": removed.id,
            "name": removed.name,
            **_key_demand(cluster),
            **acknowledgement(answer),
        }
        answer_json(resp, removal)


class KeyRotation(Resource):
    """`/apikeys/{key}/rotate`."""

    async def on_post(self, req: Request, resp: Response, key: str) -> None:
        """Answer with the key and its new secret. 404 for an unknown key."""
        cluster, body = self.cluster, await self.read(req, RotationBody)
        rotated, secret = _named(cluster, key), new_api_key()
        command = RotateApiKey(
            command_id=cluster.command_id(),
            key_id=rotated.id,
            hash=hashed(secret),
            old_until_s=round(wall() + body.grace_s, 3) if body.grace_s else 0.0,
        )
        answer = await cluster.command(command)
        await cluster.noticed(answer)
        resp.set_header(*_UNSTORED)
        latest = cluster.api_keys.book.keys.get(rotated.id, rotated)
        rotation: RotatedKey = {
            **_fields(cluster, latest),
            "key": secret,
            **acknowledgement(answer),
        }
        answer_json(resp, rotation)


def _named(cluster: Cluster, word: str) -> ApiKey:
    match = cluster.api_keys.book.named(word)
    if match is None:
        raise HttpFaultRaised(key_not_found(word))
    return match


def _key_demand(cluster: Cluster) -> AskedForKeys:
    """Return whether this node requires API keys, and how many keys its settings have."""
    options, keys = cluster.options, cluster.api_keys.book.keys
    return {
        "asked_for": options.asks_for_keys or bool(keys),
        "in_settings": len(set(options.keys) - {options.owner_key}),
    }


def _fields(cluster: Cluster, key: ApiKey) -> KeyTold:
    used, now_s = cluster.api_keys.use_of(key.id), wall()
    rotates = key.old_hash is not None and now_s < key.old_until_s
    return {
        "id": key.id,
        "name": key.name,
        "scope": key.scope,
        "requests_per_minute": key.limits.requests_per_minute,
        "concurrent": key.limits.concurrent,
        "tokens_per_day": key.limits.tokens_per_day,
        "made_at_s": key.made_at_s,
        "expires_at_s": key.expires_at_s,
        "expired": key.is_expired(now_s),
        "old_until_s": key.old_until_s if rotates else None,
        "use": {"running": used.running, "requests": used.requests, "tokens": used.tokens},
        "used_at_s": used.used_at_s or None,
    }
