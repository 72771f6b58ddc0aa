"""Talks to the disk: the cluster's keys at this node. Running processes follow changes of the key
file.

The key file has mode 0600 and is written as a whole. It is read again whenever it has changed, so
every step of a rotation reaches running processes. Another file lists the nodes that this node has
met. A node's public key is derived from its id, so the list of ids is enough to recognise the
nodes' keys. The `bus` process writes the list; every process of this node uses the list to admit
other nodes.

A node without a cluster key has the *machine key*, which all nodes of one user on one machine
share. A node with only the machine key listens on loopback alone. The machine key keeps other users
out, but it cannot tell the user's nodes apart.
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
    """Return a new key, from the system's randomness."""
    return ClusterKey(secrets.token_bytes(KEY_BYTES))


def read_keys(file: Path) -> ClusterKeys | None:
    """Return the keys of a key file; None if there is no file.

    Raises BadKey if other users may read the file, or if it contains no keys.
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
    """Return the machine key; make it if there is none. Raises BadKey if the file or its folder is
    not private to this user."""
    folder = file.parent
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
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
    """Write a key file as a whole, with mode 0600. Raises BadKey if it exists and `replace` is
    False."""
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
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size


class Keyring:
    """This node's keys, for any thread. Links use the attributes `node` or `door` as their
    `security`. `is_local`: there is only the machine key."""

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
        self._known_nodes = _read_known(self.known_file)
        self._pairs: dict[bytes, bytes] = {}
        self._admitted: dict[bytes, NodeId] = {}
        self._refusals: dict[tuple[str, str], tuple[float, int]] = {}
        self._lock = threading.Lock()
        self.node = MachineSecurity(self) if is_local else NodeSecurity(self)
        self.door = DoorSecurity(self)

    @property
    def keys(self) -> ClusterKeys:
        """Return the keys that are in the key file now."""
        self._follow()
        return self._keys

    @property
    def cluster_ids(self) -> tuple[str, ...]:
        """Return the fingerprints of the valid keys, current first. They identify the cluster."""
        return tuple(key.fingerprint for key in self.keys.valid)

    @property
    def known_nodes(self) -> frozenset[NodeId]:
        """Return the nodes that this node admits by their ids, itself included."""
        self._follow()
        return self._known_nodes | {self.me}

    def introduce(self, nodes: Iterable[NodeId]) -> None:
        """Admit these nodes by their ids, in every process of this node, until `forget`. Only the
        `bus` process may call this. Raises BadKey for an invalid node id, or for too many nodes."""
        if not self.is_local:
            self._rewrite(lambda before: before | set(nodes))

    def forget(self, node: NodeId) -> None:
        """Stop admitting a node until it is introduced again. It still has the key; only a rotation
        excludes it for good."""
        self._rewrite(lambda before: before - {node})

    def ring_secret(self, instance: InstanceId, generation: int) -> str:
        """Return the secret of MLX's ring for one load of an instance."""
        return ring_secret(self.keys, instance, generation)

    def pair(self, secret: bytes) -> tuple[bytes, bytes]:
        """Return (public, secret); the public key is computed once."""
        if secret not in self._pairs:
            self._pairs[secret] = public_key(secret)
        return self._pairs[secret], secret

    def name_of(self, public: bytes) -> NodeId | None:
        """Return the known node that has this public key, under any valid key; None for a
        stranger."""
        self._follow()
        with self._lock:
            if not self._admitted:
                self._admitted = {
                    self.pair(node_secret(key, node))[0]: node
                    for key in self._keys.valid
                    for node in self._known_nodes | {self.me}
                }
            return self._admitted.get(public)

    def say_refused(self, address: str, why: str) -> None:
        """Log a refusal, at most once an hour for each address and reason. It is a warning; but
        while two keys are valid, only an info line, because clients then try both."""
        with self._lock:
            at, count = self._refusals.get((address, why), (0.0, 0))
            if count and now() < at + SAY_AGAIN_S:
                self._refusals[address, why] = (at, count + 1)
                return
            if len(self._refusals) > MAX_KNOWN:
                self._refusals.clear()
            self._refusals[address, why] = (now(), 1)
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
                self._known_nodes = _read_known(self.known_file)
                self._admitted = {}
                self._follow_keys()
                self._read = stamps

    def _follow_keys(self) -> None:
        try:
            keys = read_keys(self.file)
            if keys is None and self.is_local:  # a cleanup of /tmp deleted the file
                with contextlib.suppress(BadKey):  # another process was first
                    write_keys(self.file, self._keys, replace=False)
                keys = read_keys(self.file)
        except (BadKey, OSError) as error:
            self._log.error(
                "cannot read the keys again; keeping the previous ones",
                why=str(error),
                key=self.named,
            )
            return
        if keys is None:
            self._log.error(
                "cannot read the keys again; keeping the previous ones", why=f"{self.file} is gone"
            )
        elif keys != self._keys:
            self._keys = keys
            self._log.info("keys changed", key=self.named, phase=keys.phase)

    def _rewrite(self, change: Callable[[frozenset[NodeId]], Iterable[NodeId]]) -> None:
        before = _read_known(self.known_file)
        wanted = frozenset(change(before)) - {self.me}
        if wanted == before:
            return
        if len(wanted) > MAX_KNOWN:
            raise BadKey(f"too many nodes: the limit is {MAX_KNOWN}; use `shoal nodes forget`")
        for node in wanted:
            if not _NODE_ID.fullmatch(node):
                raise BadKey(f"{node[:80]!r} is not a node id")
        _write(self.known_file, "".join(f"{node}\n" for node in sorted(wanted)), replace=True)
        self._follow()


class KeyringGate(ABC):
    """Base of the three kinds of security below: each has its own ZAP domain and logs refusals."""

    name: str
    max_bytes = MAX_MESSAGE_BYTES

    def __init__(self, ring: Keyring) -> None:
        self.ring = ring
        self.domain = f"{self.name}-{next(_count)}"

    @property
    def is_local(self) -> bool:
        """Return whether this security is for loopback only."""
        return self.ring.is_local

    def enter(self) -> None:
        """Register with the authenticator, to decide about the clients of this domain."""
        AUTHENTICATOR.enter(self.domain, self)

    def leave(self) -> None:
        """Unregister this security from the authenticator. Each `enter` needs one `leave`."""
        AUTHENTICATOR.leave(self.domain)

    @abstractmethod
    def admit(self, public: bytes) -> str | None:
        """Return the name of the client with this key; None refuses it."""

    def refused(self, address: str, why: str) -> None:
        """Log a failed handshake."""
        self.ring.say_refused(address, why)


class NodeSecurity(KeyringGate):
    """Security of connections between nodes that know each other. Each side proves its id, and a
    server admits known nodes."""

    name = "node"

    def serving(self) -> bytes:
        """Return this node's own secret, from the current key."""
        return node_secret(self.ring.keys.current, self.ring.me)

    def reaching(self, peer: NodeId | None) -> Sequence[CurveKeys]:
        """Return the keys of `peer` and of this node, for each valid key. Raises ValueError without
        `peer`."""
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
        """Return the known node that has this key; None for any other."""
        return self.ring.name_of(public)


class DoorSecurity(KeyringGate):
    """Security between members that don't know each other's ids yet. Both sides prove that they
    have the cluster key, but neither proves its id. Used only for the first hello."""

    name = "door"
    max_bytes = DOOR_MAX_BYTES

    def serving(self) -> bytes:
        """Return the secret that all members share for the first hello, from the current key."""
        return door_secret(self.ring.keys.current)

    def reaching(self, peer: NodeId | None) -> Sequence[CurveKeys]:
        """Return the shared keys for the first hello, for each valid cluster key."""
        pairs = [self.ring.pair(door_secret(key)) for key in self.ring.keys.valid]
        return [CurveKeys(public, public, secret) for public, secret in pairs]

    def admit(self, public: bytes) -> str | None:
        """Return an empty name for a member of the cluster; None for a stranger."""
        mine = (self.ring.pair(door_secret(key))[0] for key in self.ring.keys.valid)
        return "" if public in mine else None


class MachineSecurity(DoorSecurity):
    """Security between this user's nodes on one machine. A node that has the machine key is
    admitted immediately; no node proves its id."""

    name = "machine"
    max_bytes = MAX_MESSAGE_BYTES


def open_keyring(files: KeyFiles, *, node: NodeId, log: Log) -> Keyring | None:
    """Return the keyring with the key file, else with the machine key; None if there is neither.
    Raises BadKey for an invalid file."""
    keys, file = read_keys(files.key), files.key
    is_local = keys is None and files.machine is not None
    if is_local and files.machine is not None:
        keys, file = machine_keys(files.machine), files.machine
    if keys is None:
        return None
    met_nodes = files.met_nodes
    return Keyring(keys, file=file, known_file=met_nodes, node=node, log=log, is_local=is_local)


def _read_known(file: Path) -> frozenset[NodeId]:
    try:
        lines = file.read_text().split()
    except (OSError, UnicodeDecodeError):
        return frozenset()
    return frozenset(NodeId(line) for line in lines if _NODE_ID.fullmatch(line))
