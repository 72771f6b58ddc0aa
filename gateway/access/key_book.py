"""Finds the API key of a secret, among the keys of the cluster's state.

Pure. Keys are found by the SHA-256 of the secret. A secret has 256 bits, so the time of a lookup
reveals nothing about it.
"""

from __future__ import annotations

from collections.abc import Mapping

from bus.wire.api_keys import ApiKey


class KeyBook:
    """The API keys in one state of the cluster, by hash. The old hash of a rotated key is valid
    until `old_until_s`."""

    def __init__(self, keys: Mapping[str, ApiKey]) -> None:
        self.keys = keys
        self._by_hash = {key.hash: key for key in keys.values()}
        self._by_old_hash = {key.old_hash: key for key in keys.values() if key.old_hash}

    def find(self, hashed: str, wall_s: float) -> ApiKey | None:
        """Return the key with that hash; None if no key with that hash is valid at `wall_s`."""
        key = self._by_hash.get(hashed)
        if key is None:
            key = self._by_old_hash.get(hashed)
            if key is None or wall_s >= key.old_until_s:
                return None
        return None if key.is_expired(wall_s) else key

    def named(self, word: str) -> ApiKey | None:
        """Return the key whose id or name is `word`; None if there is none. Upper and lower case
        may differ in a name."""
        folded = word.casefold()
        same = (key for key in self.keys.values() if key.name.casefold() == folded)
        return self.keys.get(word) or next(same, None)
