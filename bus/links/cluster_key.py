"""Cluster keys: one secret, the secrets derived from it, and their public forms.

Pure. A cluster key is 32 random bytes and the only root of trust. A machine with the key can be any
node of the cluster; a machine without it can't be one. Derived secrets come from HKDF-SHA256 (RFC
5869), each use under its own label, so that none reveals another or the key. Users and files have a
key as text (Crockford's base32 with a checksum). Logs, errors and other machines see only its
fingerprint.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bus.wire.errors import BadKey
from bus.wire.ids import InstanceId, NodeId

KEY_BYTES = 32
CHECK_BYTES = 3
TEXT_CHARACTERS = (KEY_BYTES + CHECK_BYTES) * 8 // 5
GROUP = 8
PREFIX = "shoal1"
LABEL = b"shoal key 1"
HEADER = "# The keys of a shoal cluster. Whoever reads this file can join it: keep it private.\n"
_RFC4648 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_WRITTEN = str.maketrans(_RFC4648, _CROCKFORD)
_READ = str.maketrans(_CROCKFORD + "OIL", _RFC4648 + "ABB")
"""Crockford's alphabet has no I, L, O, U; a typed I or L means 1, a typed O means 0."""

Phase = Literal["settled", "prepared", "switched"]


@dataclass(frozen=True, slots=True)
class KeyFiles:
    """Paths of three files. The cluster's key file is optional. The second file lists the nodes
    that this node has met. The file of the machine key is created if it is missing."""

    key: Path
    met_nodes: Path
    machine: Path | None = None


@dataclass(frozen=True, slots=True)
class ClusterKey:
    """One cluster key. Its `repr` shows the fingerprint; only `text` shows the secret."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise BadKey(f"a cluster key needs {KEY_BYTES} bytes; this one has {len(self.secret)}")

    def __repr__(self) -> str:
        return f"ClusterKey({self.fingerprint})"

    @property
    def fingerprint(self) -> str:
        """Return the 16 hexadecimal digits that identify the key in public; also the cluster's
        id."""
        return derive(self, "fingerprint", length=8).hex()

    @property
    def text(self) -> str:
        """Return `shoal1-` and seven groups of eight characters; the last five are a checksum."""
        raw = base64.b32encode(self.secret + _check(self.secret)).decode().translate(_WRITTEN)
        groups = (raw[at : at + GROUP] for at in range(0, len(raw), GROUP))
        return "-".join((PREFIX, *groups))


def parse_key(text: str) -> ClusterKey:
    """Parse a typed key. Case, blanks, dashes and the prefix do not matter; O counts as 0, I and L
    as 1.

    Raises BadKey with the reason; the message contains no part of the key.
    """
    body = re.sub(r"[\s\-]+", "", text).upper()
    if len(body) == len(PREFIX) + TEXT_CHARACTERS and body.startswith(PREFIX.upper()):
        body = body.removeprefix(PREFIX.upper())
    if len(body) != TEXT_CHARACTERS:
        raise BadKey(
            f"a cluster key needs {TEXT_CHARACTERS} characters after `{PREFIX}-`; "
            f"this one has {len(body)}"
        )
    strange = sum(character not in _CROCKFORD + "OIL" for character in body)
    if strange:
        raise BadKey(f"{strange} of the characters cannot occur in a cluster key")
    raw = base64.b32decode(body.translate(_READ))
    secret, check = raw[:KEY_BYTES], raw[KEY_BYTES:]
    if not hmac.compare_digest(check, _check(secret)):
        raise BadKey("the checksum of the key is wrong: check for a mistyped character")
    return ClusterKey(secret)


def hkdf(secret: bytes, *, salt: bytes, info: bytes, length: int) -> bytes:
    """Return `length` bytes, at most 8160, derived from a secret for one use: HKDF-SHA256 (RFC
    5869)."""
    extracted = hmac.digest(salt or bytes(32), secret, "sha256")
    derived, block = b"", b""
    for count in range(1, -(-length // 32) + 1):
        block = hmac.digest(extracted, block + info + bytes([count]), "sha256")
        derived += block
    return derived[:length]


def derive(key: ClusterKey, use: str, *parts: str, length: int = KEY_BYTES) -> bytes:
    """Return the secret of one use of `key`, `length` bytes. `parts` name its owner or purpose.

    Raises ValueError if a part contains NUL.
    """
    if any("\0" in part for part in parts):
        raise ValueError("a part of a key's use contains NUL")
    info = b"\0".join(part.encode() for part in (use, *parts))
    return hkdf(key.secret, salt=LABEL, info=info, length=length)


@functools.lru_cache(maxsize=256)
def node_secret(key: ClusterKey, node: NodeId) -> bytes:
    """Return the Curve25519 secret of a node: its identity as a server and as a client."""
    return derive(key, "node", node)


@functools.lru_cache(maxsize=8)
def door_secret(key: ClusterKey) -> bytes:
    """Return the Curve25519 secret that all members share, for nodes that have not met yet."""
    return derive(key, "door")


def ring_secret(keys: ClusterKeys | None, instance: InstanceId, generation: int) -> str:
    """Return the secret of MLX's ring, 64 hexadecimal digits, for one generation (one attempt to
    load the instance).

    It uses the oldest valid key, so that nodes in different steps of a rotation agree. Without keys
    it separates generations but does not keep strangers out.
    """
    key = keys.oldest if keys is not None else ClusterKey(bytes(KEY_BYTES))
    return derive(key, "ring", instance, str(generation)).hex()


@dataclass(frozen=True, slots=True)
class ClusterKeys:
    """The keys that are valid at one node: one, or two during a rotation.

    This node serves with `current` and tries it first. `coming` is prepared, `past` is being
    removed; never both exist. A CURVE server has exactly one key, so a rotation takes three steps,
    each done at every node before the next (decision 0010).
    """

    current: ClusterKey
    coming: ClusterKey | None = None
    past: ClusterKey | None = None

    def __post_init__(self) -> None:
        if self.coming is not None and self.past is not None:
            raise BadKey("a new key is prepared while the last rotation is not finished")
        if len({key.fingerprint for key in self.valid}) != len(self.valid):
            raise BadKey("the same key is listed twice")

    @property
    def valid(self) -> tuple[ClusterKey, ...]:
        """Return all valid keys, in the order to try them."""
        return tuple(k for k in (self.current, self.coming, self.past) if k is not None)

    @property
    def oldest(self) -> ClusterKey:
        """Return the key that every node has until the rotation is finished."""
        return self.past if self.past is not None else self.current

    @property
    def phase(self) -> Phase:
        """Return the phase of a rotation."""
        if self.coming is not None:
            return "prepared"
        return "switched" if self.past is not None else "settled"

    def prepare(self, coming: ClusterKey) -> ClusterKeys:
        """Begin a rotation. Raises BadKey during another one."""
        if self.phase != "settled":
            raise BadKey("a rotation is already in progress; finish it first")
        return ClusterKeys(self.current, coming=coming)

    def switch(self) -> ClusterKeys:
        """Serve with the coming key. Raises BadKey if there is none."""
        if self.coming is None:
            raise BadKey("no new key is prepared; begin with `shoal keys rotate`")
        return ClusterKeys(self.coming, past=self.current)

    def finish(self) -> ClusterKeys:
        """Remove the past key. Raises BadKey if there is none."""
        if self.past is None:
            raise BadKey("no old key is left to remove")
        return ClusterKeys(self.current)

    def is_kin(self, other: ClusterKeys) -> bool:
        """Return whether these keys and `other` belong to one cluster: they share a valid key."""
        mine = {key.fingerprint for key in self.valid}
        return any(key.fingerprint in mine for key in other.valid)


_LINES = ("current", "coming", "past")


def render_keys(keys: ClusterKeys) -> str:
    """Return the text of a key file: a line for each key, `current shoal1-...`."""
    named = ((name, getattr(keys, name)) for name in _LINES)
    return HEADER + "".join(f"{name} {key.text}\n" for name, key in named if key is not None)


def parse_keys(text: str) -> ClusterKeys:
    """Parse a key file, or one bare key. Raises BadKey with the line of the fault."""
    keys: dict[str, ClusterKey] = {}
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    written = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if len(written) == 1 and written[0][1].partition(" ")[0] not in _LINES:
        return ClusterKeys(parse_key(written[0][1]))
    for number, line in written:
        name, _, key = line.partition(" ")
        if name not in _LINES or name in keys:
            raise BadKey(
                f"line {number} must begin with one of {', '.join(_LINES)}; each occurs once"
            )
        try:
            keys[name] = parse_key(key)
        except BadKey as error:
            raise BadKey(f"line {number}: {error}") from None
    if "current" not in keys:
        raise BadKey("the current key is missing")
    return ClusterKeys(**keys)


def _check(secret: bytes) -> bytes:
    return hashlib.sha256(LABEL + secret).digest()[:CHECK_BYTES]
