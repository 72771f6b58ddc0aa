"""Talks to the disk: the cluster's keys as this node has them, followed while they change.

The key file is 0600, written whole or not at all. It is read again whenever it has changed, so
every step of a rotation reaches running processes. Another file lists the nodes that this node
has met: a node's public key follows from its id, so to know the id is to know the key. The `bus`
process writes the list; every process of the node admits by it. A node without a cluster key has
the *machine key*, which all nodes of one user on one machine share, and with it stays on
loopback: it keeps other users out, and tells no nodes apart.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from bus.links.authenticator import AUTHENTICATOR
from bus.links.cluster_key import (
    KEY_BYTES,
    ClusterKey,
    ClusterKeys,
    KeyFiles,
    door_secret,
    node_secret,
    parse_keys,
    render_keys,
    ring_secret,
)
from bus.links.curve import public_key
from bus.links.security import CurveKeys
from bus.links.transport import MAX_MESSAGE_BYTES
from bus.process.clock import now
from bus.process.logs import Log
from bus.wire.errors import BadKey
from bus.wire.ids import InstanceId, NodeId

PRIVATE = 0o600
MAX_KNOWN = 1024
SAY_AGAIN_S = 3600.0
DOOR_MAX_BYTES = 64 << 10
_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_count = itertools.count(1)
_Stamp = tuple[int, int, int, int] | None


def new_key() -> ClusterKey:
    """Return a fresh key, from the system's randomness."""
    return ClusterKey(secrets.token_bytes(KEY_BYTES))


def read_keys(file: Path) -> ClusterKeys | None:
    """Return the keys of a key file, None where there is none.

    Raises BadKey when others than its owner may read it, or when it holds no keys.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadKey(f"{file} cannot be read: {error.strerror}") from None
    with open(descriptor) as opened:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if mode & 0o077:
            raise BadKey(
                f"other users can read {file} (mode {mode:04o}). Run `chmod 600 {file}`; "
                "if someone may have read it, also make a new key with `shoal keys rotate`"
            )
        try:
            return parse_keys(opened.read())
        except (BadKey, UnicodeDecodeError) as error:
            why = str(error) if isinstance(error, BadKey) else "it is not text"
            raise BadKey(f"{file}: {why}") from None


def machine_keys(file: Path) -> ClusterKeys:
    """Return the machine key, a new one where there is none. Raises BadKey when the file or its
    folder is not this user's alone."""
    folder = file.parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise BadKey(f"{folder} is not private to this user; remove it or `chmod 700` it")
    keys = read_keys(file)
    if keys is None:
        with contextlib.suppress(BadKey):  # another process was first
            write_keys(file, ClusterKeys(new_key()), replace=False)
        keys = read_keys(file)
    if keys is None:
        raise BadKey(f"{file} is a broken link; remove it")
    return keys


def write_keys(file: Path, keys: ClusterKeys, *, replace: bool) -> None:
    """Write a key file, 0600, whole or not at all. Raises BadKey when there is one already and
    it is not to be replaced."""
    _write(file, render_keys(keys), replace=replace)


def _write(file: Path, text: str, *, replace: bool) -> None:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    try:
        with open(descriptor, "w") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(descriptor)
        if replace:
            os.replace(draft, file)
        else:
            os.link(draft, file)
    except FileExistsError:
        raise BadKey(f"{file} already exists") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)


def _stamp(file: Path) -> _Stamp:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size


class Keyring:
    """This node's keys. `node` and `door` are what links take as `security`. From any thread.
    `is_local`: the machine key is all there is."""

    def __init__(
        self,
        keys: ClusterKeys,
        *,
        file: Path,
        known_file: Path,
        node: NodeId,
        log: Log,
        is_local: bool = False,
    ) -> None:
        self.file = file
        self.is_local = is_local
        self.known_file = known_file
        self.me = node
        self._log = log
        self._keys = keys
        self._read = (_stamp(file), _stamp(self.known_file))
        self._known = _read_known(self.known_file)
        self._pairs: dict[bytes, bytes] = {}
        self._admitted: dict[bytes, NodeId] = {}
        self._said: dict[tuple[str, str], tuple[float, int]] = {}
        self._lock = threading.Lock()
        self.node = MachineSecurity(self) if is_local else NodeSecurity(self)
        self.door = DoorSecurity(self)

    @property
    def keys(self) -> ClusterKeys:
        """Return the keys as they stand on the disk now."""
        self._follow()
        return self._keys

    @property
    def cluster_ids(self) -> tuple[str, ...]:
        """Return the fingerprints of the valid keys, current first: the cluster is met by them."""
        return tuple(key.fingerprint for key in self.keys.valid)

    @property
    def known(self) -> frozenset[NodeId]:
        """Return the nodes that are admitted by name, this one included."""
        self._follow()
        return self._known | {self.me}

    def introduce(self, nodes: Iterable[NodeId]) -> None:
        """Admit these nodes by name, in every process of this node, until `forget`. For the `bus`
        process alone. Raises BadKey for what is no node id, or for too many."""
        if not self.is_local:
            self._rewrite(lambda known: known | set(nodes))

    def forget(self, node: NodeId) -> None:
        """Admit a node no longer, until it is introduced again. It still has the key: only a
        rotation shuts it out."""
        self._rewrite(lambda known: known - {node})

    def ring_secret(self, instance: InstanceId, generation: int) -> str:
        """Return the secret of MLX's ring for one generation, as `bus.links.cluster_key` has it."""
        return ring_secret(self.keys, instance, generation)

    def pair(self, secret: bytes) -> tuple[bytes, bytes]:
        """Return (public, secret), computed once."""
        if secret not in self._pairs:
            self._pairs[secret] = public_key(secret)
        return self._pairs[secret], secret

    def name_of(self, public: bytes) -> NodeId | None:
        """Return the known node whose key this is, under any valid key; None for a stranger's."""
        self._follow()
        with self._lock:
            if not self._admitted:
                self._admitted = {
                    self.pair(node_secret(key, node))[0]: node
                    for key in self._keys.valid
                    for node in self._known | {self.me}
                }
            return self._admitted.get(public)

    def say_refused(self, address: str, why: str) -> None:
        """Log a refusal, at most once an hour for each address and reason: a warning, but while
        two keys are valid, when it is what a client meets that tries them."""
        with self._lock:
            at, count = self._said.get((address, why), (0.0, 0))
            if count and now() < at + SAY_AGAIN_S:
                self._said[address, why] = (at, count + 1)
                return
            if len(self._said) > MAX_KNOWN:
                self._said.clear()
            self._said[address, why] = (now(), 1)
        say = self._log.warning if self._keys.phase == "settled" else self._log.info
        say("refused a connection", address=address, why=why, so_far=count + 1, key=self.named)

    @property
    def named(self) -> str:
        """Return the fingerprint of the current key."""
        return self._keys.current.fingerprint

    def _follow(self) -> None:
        if (_stamp(self.file), _stamp(self.known_file)) == self._read:
            return
        with self._lock:
            stamps = (_stamp(self.file), _stamp(self.known_file))
            if stamps != self._read:
                self._known = _read_known(self.known_file)
                self._admitted = {}
                self._follow_keys()
                self._read = stamps

    def _follow_keys(self) -> None:
        try:
            found = read_keys(self.file)
            if found is None and self.is_local:  # systems sweep their temporary folders
                with contextlib.suppress(BadKey):  # another process was first
                    write_keys(self.file, self._keys, replace=False)
                found = read_keys(self.file)
        except (BadKey, OSError) as error:
            self._log.error(
                "cannot read the keys again; keeping the previous ones",
                why=str(error),
                key=self.named,
            )
            return
        if found is None:
            self._log.error(
                "cannot read the keys again; keeping the previous ones", why=f"{self.file} is gone"
            )
        elif found != self._keys:
            self._keys = found
            self._log.info("keys changed", key=self.named, phase=found.phase)

    def _rewrite(self, change: Callable[[frozenset[NodeId]], Iterable[NodeId]]) -> None:
        known = _read_known(self.known_file)
        wanted = frozenset(change(known)) - {self.me}
        if wanted == known:
            return
        if len(wanted) > MAX_KNOWN:
            raise BadKey(f"too many known nodes: the limit is {MAX_KNOWN}; forget some")
        for node in wanted:
            if not _NODE_ID.fullmatch(node):
                raise BadKey(f"{node[:80]!r} is not a node id")
        _write(self.known_file, "".join(f"{node}\n" for node in sorted(wanted)), replace=True)
        self._follow()


class KeyringGate(ABC):
    """What both ways of meeting others share: a ZAP domain of its own, and a log of refusals."""

    name: str
    max_bytes = MAX_MESSAGE_BYTES

    def __init__(self, ring: Keyring) -> None:
        self.ring = ring
        self.domain = f"{self.name}-{next(_count)}"

    @property
    def is_local(self) -> bool:
        """Return whether this is for loopback alone."""
        return self.ring.is_local

    def enter(self) -> None:
        """Have the authenticator ask this gate about clients of its domain."""
        AUTHENTICATOR.enter(self.domain, self)

    def leave(self) -> None:
        """Take back one `enter`."""
        AUTHENTICATOR.leave(self.domain)

    @abstractmethod
    def admit(self, public: bytes) -> str | None:
        """Return the name of the client with this key, None for one that is refused."""

    def refused(self, address: str, why: str) -> None:
        """Log a handshake that failed."""
        self.ring.say_refused(address, why)


class NodeSecurity(KeyringGate):
    """As this node, to nodes: each side proves its id, and a server admits those it knows."""

    name = "node"

    def serving(self) -> bytes:
        """Return this node's own secret under the current key."""
        return node_secret(self.ring.keys.current, self.ring.me)

    def reaching(self, peer: NodeId | None) -> Sequence[CurveKeys]:
        """Return the keys of `peer` and of this node, for each valid key; `peer` is required."""
        if peer is None:
            raise ValueError("a secure connection must name the node that it connects to")
        return [
            CurveKeys(
                self.ring.pair(node_secret(key, peer))[0],
                *self.ring.pair(node_secret(key, self.ring.me)),
            )
            for key in self.ring.keys.valid
        ]

    def admit(self, public: bytes) -> str | None:
        """Return the known node whose key this is, None for any other."""
        return self.ring.name_of(public)


class DoorSecurity(KeyringGate):
    """As a member, to members whose ids are not known yet: both sides prove that they have the
    cluster key, neither proves a name. For first hellos alone."""

    name = "door"
    max_bytes = DOOR_MAX_BYTES

    def serving(self) -> bytes:
        """Return the secret of the door under the current key."""
        return door_secret(self.ring.keys.current)

    def reaching(self, peer: NodeId | None) -> Sequence[CurveKeys]:
        """Return the keys of the door for each valid key; the peer does not matter."""
        pairs = [self.ring.pair(door_secret(key)) for key in self.ring.keys.valid]
        return [CurveKeys(public, public, secret) for public, secret in pairs]

    def admit(self, public: bytes) -> str | None:
        """Return an empty name for a member of the cluster, None for a stranger."""
        mine = (self.ring.pair(door_secret(key))[0] for key in self.ring.keys.valid)
        return "" if public in mine else None


class MachineSecurity(DoorSecurity):
    """As a node, to this user's other nodes on this machine: each has the machine key, is admitted
    by it from the first moment, and proves no name."""

    name = "machine"
    max_bytes = MAX_MESSAGE_BYTES


def open_keyring(files: KeyFiles, *, node: NodeId, log: Log) -> Keyring | None:
    """Return the keyring of the key file, else of the machine key; None without either. Raises
    BadKey for a file that is there and wrong."""
    keys, file = read_keys(files.key), files.key
    is_local = keys is None and files.machine is not None
    if is_local and files.machine is not None:
        keys, file = machine_keys(files.machine), files.machine
    if keys is None:
        return None
    known = files.known
    return Keyring(keys, file=file, known_file=known, node=node, log=log, is_local=is_local)


def _read_known(file: Path) -> frozenset[NodeId]:
    try:
        lines = file.read_text().split()
    except (OSError, UnicodeDecodeError):
        return frozenset()
    return frozenset(NodeId(line) for line in lines if _NODE_ID.fullmatch(line))
