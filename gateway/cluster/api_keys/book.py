"""Which API key a secret is, as the cluster's state has them.

Pure. Looked up by the SHA-256 of what is offered: how long that takes tells nothing of a secret
that has 256 bits.
"""

from __future__ import annotations

from collections.abc import Mapping

from bus.wire.api_keys import ApiKey


class KeyBook:
    """The keys of one state, by their hashes."""

    def __init__(self, keys: Mapping[str, ApiKey]) -> None:
        self.keys = keys
        self._by_hash = {key.hash: key for key in keys.values()}
        self._by_old_hash = {key.old_hash: key for key in keys.values() if key.old_hash}

    def find(self, hashed: str, wall_s: float) -> ApiKey | None:
        """Return the key of that hash; None for none that is taken at `wall_s`."""
        found = self._by_hash.get(hashed)
        if found is None:
            found = self._by_old_hash.get(hashed)
            if found is None or wall_s >= found.old_until_s:
                return None
        return None if found.is_expired(wall_s) else found

    def named(self, word: str) -> ApiKey | None:
        """Return the key with that id or name, in whichever letters; None for no such one."""
        folded = word.casefold()
        same = (key for key in self.keys.values() if key.name.casefold() == folded)
        return self.keys.get(word) or next(same, None)
