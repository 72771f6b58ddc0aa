"""Talks to the disk: makes, with the product's own code, every file that a node writes to read it
again after a restart.

Each `make_*` fills an empty folder the same way at every call; nothing in a file depends on the
clock, on chance, or on where the folder lies. `known_hashes` alone is told with marks in place of
a path and an inode.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bus.links.cluster_key import (
    ClusterKey,
    ClusterKeys,
    KeyFiles,
    door_secret,
    node_secret,
    ring_secret,
)
from bus.links.keyring import open_keyring, write_keys
from bus.membership.peer_memory import PeerMemory, Remembered
from bus.process.logs import Log
from bus.replica.state import ClusterState, digest
from bus.wire.codec import unpack
from bus.wire.ids import InstanceId, ModelId, NodeId
from bus.wire.messages.peers import KnownPeer
from bus.wire.messages.weights import PIECE_BYTES, Manifest
from conf.settings import load_settings
from conf.supervisord import remember_start
from master.consensus.term_file import keep_term
from master.consensus.types import PersistentState
from master.log.journal import Journal
from tests.recorded.history import N1, N2, N3, folded, story
from worker.models.file_hashes import Hashes, Held
from worker.models.layer_bytes import Layers
from worker.models.manifest import manifest_of
from worker.transfer.pieces import Piece
from worker.transfer.staging import Stage

MAX_RECORDS = 25
"""So many events fit into a segment of the recorded journal: one is archived, then more come."""
KEYS = tuple(ClusterKey(bytes(range(n, n + 32))) for n in (0, 100))
CHANGED_NS = 1_700_000_000_123_456_789
MODEL = ModelId("owner/model")
FLAGS: Mapping[str, Any] = {
    "node_name": "box",
    "http_port": 50001,
    "preload": ["shoal-tiny", "owner/model"],
    "bundled_model": False,
    "runner.max_rows": 7,
    "cluster.peers": ["10.0.0.2:24154"],
}
"""What `shoal up` was told, and keeps."""


def quiet_log() -> Log:
    """Make a log that nobody reads."""
    return Log(node="n", process="test", stream=io.StringIO())


def journal_in(folder: Path) -> Journal:
    """Make a journal that archives early and never finds the disk full."""
    return Journal(folder, quiet_log(), max_records=MAX_RECORDS, low_disk_bytes=0)


def make_journal(folder: Path) -> ClusterState:
    """Write the story as a journal: an archived segment, a snapshot, events after it. Returns
    the state behind it."""
    journal = journal_in(folder)
    state, _ = journal.open()
    for event in story():
        state = folded(state, [event])
        journal.append(event, state_after=state)
    journal.close()
    return state


def told_state(state: ClusterState) -> dict[str, Any]:
    """Tell a state and the digest that heartbeats carry of it."""
    return {"digest": digest(state), "state": state.model_dump(mode="json")}


def make_small_files(folder: Path) -> None:
    """Write the state folder's small files: terms, peers, keys in each phase, known nodes."""
    keep_term(folder / "term", PersistentState(7, N2, True))
    keep_term(folder / "term-unvoted", PersistentState(3, None, False))
    known = (KnownPeer(node=N1, addresses=("10.0.0.1:24154",)), KnownPeer(node=N2, addresses=()))
    PeerMemory(folder / "peers.json", quiet_log()).keep(Remembered(known, frozenset({N3})))
    settled = ClusterKeys(KEYS[0])
    prepared = settled.prepare(KEYS[1])
    for name, keys in (("", settled), ("-prepared", prepared), ("-switched", prepared.switch())):
        write_keys(folder / f"cluster-key{name}", keys, replace=True)
    files = KeyFiles(folder / "cluster-key", folder / "known-nodes")
    keyring = open_keyring(files, node=N1, log=quiet_log())
    if keyring is not None:
        keyring.introduce([N3, N2])


def make_home(home: Path) -> None:
    """Write what `shoal up` remembers of its flags into a home."""
    settings = load_settings(home=home, flags=FLAGS, remembered=False)
    settings.paths.state.mkdir(parents=True)
    remember_start(settings)


def derived_secrets() -> dict[str, str]:
    """Tell all that nodes derive from a cluster key, which has to be the same at each of them."""
    keys = ClusterKeys(KEYS[0])
    return {
        "fingerprint": KEYS[0].fingerprint,
        "text": KEYS[0].text,
        "node": node_secret(KEYS[0], NodeId("n0000000001")).hex(),
        "door": door_secret(KEYS[0]).hex(),
        "ring": ring_secret(keys, InstanceId("inst-1"), 3),
        "ring without a key": ring_secret(None, InstanceId("inst-1"), 3),
    }


def contents() -> dict[str, bytes]:
    """Make the files of a small model."""
    return {
        "config.json": b'{"model_type": "toy"}',
        "model.safetensors": b"\x02\x00\x00\x00\x00\x00\x00\x00{}" + bytes(range(64)),
        "sub/tokenizer.json": b"{}",
    }


def never() -> bool:
    """Say that nobody wants the work stopped."""
    return False


def held(folder: Path, path: str) -> Held:
    """Write one of the model's files, last changed long ago, and look at it."""
    real = folder.resolve() / path
    real.parent.mkdir(parents=True, exist_ok=True)
    real.write_bytes(contents()[path])
    os.utime(real, ns=(CHANGED_NS, CHANGED_NS))
    seen = real.stat()
    return Held(path, real, seen.st_size, seen.st_mtime_ns, seen.st_ino)


def made_manifest(folder: Path) -> Manifest:
    """Hash the model's files in `folder`, and make its manifest."""
    hashes = Hashes(folder / "hashes")
    files = [held(folder / "model", path) for path in contents()]
    return manifest_of(MODEL, [hashes.of(file, lambda _: None, never) for file in files])


def known_hashes(folder: Path) -> list[Any]:
    """Hash one file, and tell what is kept of it, with marks for its path and inode."""
    file = held(folder / "model", "config.json")
    Hashes(folder / "hashes").of(file, lambda _: None, never)
    kept = unpack(hashes_file(folder / "hashes", file).read_bytes())
    if kept[0] != str(file.real) or kept[3] != file.inode:
        raise ValueError(f"neither path nor inode where they were: {kept}")
    kept[0], kept[3], kept[5] = "<path>", "<inode>", kept[5].hex()
    return kept


def hashes_file(folder: Path, file: Held) -> Path:
    """Name the file that keeps the hashes of another."""
    return folder / hashlib.sha256(str(file.real).encode()).hexdigest()[:32]


def make_stage(models: Path, manifest: Manifest) -> None:
    """Begin to fetch a model: one file is whole and checked, one has come, one has not; two
    stretches of layers are kept."""
    stage = Stage(models, manifest)
    stage.open(never)
    for path in ("config.json", "model.safetensors"):
        stage.write(Piece(path, 0), contents()[path])
    stage.check("config.json", never)
    stage.keep(Layers(0, 2, 9), never)
    stage.keep(Layers(4, 7, 9), never)


def tree(folder: Path) -> dict[str, bytes]:
    """Read every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def constants() -> dict[str, Any]:
    """Tell the numbers that both ends of a transfer have to agree on."""
    return {"piece_bytes": PIECE_BYTES}


def told_flags(home: Path) -> dict[str, Any]:
    """Read the settings of a home, and tell those that it remembers, as JSON has them."""
    settings = load_settings(home=home)
    rows = {key: value for key, value, source in settings.rows() if source == "shoal up"}
    return json.loads(json.dumps(rows))
