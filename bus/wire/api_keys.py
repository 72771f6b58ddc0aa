"""API keys as facts of the cluster: who may ask over HTTP, for what, how much and until when.

Pure. A key is kept as its SHA-256 alone, and a field for one takes nothing else: no secret can come
into the log. All nodes know all keys, for they are in the cluster's state, and therefore bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from bus.wire.messages.wire import Message

Scope = Literal["inference", "admin"]
"""What a key opens: `inference` what generates, embeds and lists models, `admin` everything."""
MAX_API_KEYS = 256
"""API keys of a cluster."""
HASH_PATTERN = r"^sha256:[0-9a-f]{64}$"
KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
KEY_ID = re.compile(r"key-[0-9a-f]{8}")


class KeyLimits(Message):
    """How much a key may ask for on all nodes together; None: any number. A minute is any 60 s, a
    day one of UTC; tokens are those of prompts and answers."""

    requests_per_minute: int | None = Field(default=None, ge=1, le=1_000_000)
    concurrent: int | None = Field(default=None, ge=1, le=1_000_000)
    tokens_per_day: int | None = Field(default=None, ge=1, le=1_000_000_000_000)


class ApiKey(Message):
    """One key. `id` stays for its life, `hash` until it is rotated; then `old_hash`, where there is
    one, is taken as well until `old_until_s`. Instants are seconds since 1970; `expires_at_s` None:
    never."""

    id: str
    name: str
    hash: str = Field(pattern=HASH_PATTERN)
    scope: Scope
    limits: KeyLimits = KeyLimits()
    made_at_s: float = 0.0
    expires_at_s: float | None = None
    old_hash: str | None = Field(default=None, pattern=HASH_PATTERN)
    old_until_s: float = 0.0

    def is_expired(self, wall_s: float) -> bool:
        """Return whether the key is no longer taken at `wall_s`."""
        return self.expires_at_s is not None and wall_s >= self.expires_at_s


LOST_KEYS = ApiKey(
    id="key-00000000",
    name="lost-keys",
    hash="sha256:" + "0" * 64,
    scope="inference",
    expires_at_s=0.0,
)
"""A key that nobody has. It stands in the state where API keys may have been lost with a damaged
log, so that every node goes on asking for a key until a person removes it."""


def keys_were_lost(keys: Mapping[str, ApiKey]) -> bool:
    """Return whether some of these keys may have been lost, and no person has seen to it yet."""
    return LOST_KEYS.id in keys


KEYS_LOST_WORDS = (
    "API keys may be lost with a damaged journal, so each node accepts only its owner's "
    "`http-token`",
    "list the keys with `shoal apikey ls`, add missing ones with `shoal apikey add NAME`, then "
    "reopen the nodes with `shoal apikey rm lost-keys`",
)
"""What is wrong where keys were lost, and what to do."""
