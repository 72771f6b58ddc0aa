"""API keys in the cluster's state: who may use HTTP, for what, how much and until when.

Pure. Only the SHA-256 of a key is stored, and its field accepts nothing else, so no secret can
enter the log. The cluster's state has all keys, so every node knows them, and their number is
limited.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from bus.wire.messages.wire import Message

Scope = Literal["inference", "admin"]
"""A key's permission. `inference`: generate, embed and list models; `admin`: everything."""
MAX_API_KEYS = 256
"""Maximum API keys of a cluster."""
HASH_PATTERN = r"^sha256:[0-9a-f]{64}$"
KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
KEY_ID = re.compile(r"key-[0-9a-f]{8}")


class KeyLimits(Message):
    """Limits of a key over all nodes together; None: unlimited. A minute is any 60 s, a day is a
    UTC day; tokens are those of prompts and answers."""

    requests_per_minute: int | None = Field(default=None, ge=1, le=1_000_000)
    concurrent: int | None = Field(default=None, ge=1, le=1_000_000)
    tokens_per_day: int | None = Field(default=None, ge=1, le=1_000_000_000_000)


class ApiKey(Message):
    """One key. `id` never changes; `hash` changes when the key is rotated. `old_hash`, if any,
    stays valid until `old_until_s`. Times are seconds since 1970; `expires_at_s` None: never."""

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
        """Return whether the key is no longer valid at `wall_s`, in seconds since 1970."""
        return self.expires_at_s is not None and wall_s >= self.expires_at_s


LOST_KEYS = ApiKey(
    id="key-00000000",
    name="lost-keys",
    hash="sha256:" + "0" * 64,
    scope="inference",
    expires_at_s=0.0,
)
"""A pseudo key without a secret. It marks a state whose API keys may be lost with a damaged log. As
long as it exists, every node still requires a key; a person removes it (`shoal apikey rm`)."""


def keys_were_lost(keys: Mapping[str, ApiKey]) -> bool:
    """Return whether some API keys may be lost and no person has removed the mark `LOST_KEYS`
    yet."""
    return LOST_KEYS.id in keys


KEYS_LOST_WORDS = (
    "API keys may be lost with a damaged journal, so each node accepts only its owner's "
    "`http-token`",
    "list the keys with `shoal apikey ls`, add missing ones with `shoal apikey add NAME`, then "
    "reopen the nodes with `shoal apikey rm lost-keys`",
)
"""The error and the remedy for lost keys."""
