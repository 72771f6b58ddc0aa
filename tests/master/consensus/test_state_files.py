"""The small files beside the journal: every flipped bit is seen, and none opens a node."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from bus.process.identity import Damaged, sealed, unsealed
from bus.process.logs import Log
from bus.replica.state import ClusterState, apply
from bus.wire.api_keys import LOST_KEYS, ApiKey, keys_were_lost
from bus.wire.ids import NodeId
from bus.wire.messages.events import ApiKeyAdded, ApiKeyChanged, ApiKeyRemoved, Event
from master.consensus.keys_file import (
    KeysFile,
    StoredKeys,
    parse_keys,
    render_keys,
    returned_keys,
)
from master.consensus.term_file import TermFile, keep_term, read_term
from master.consensus.types import PersistentState
from tests.sim.disk import Disk

PATH = Path("/api-keys")


def key(number: int, hashed: str = "a") -> ApiKey:
    return ApiKey(
        id=f"key-{number:08x}", name=f"k{number}", hash="sha256:" + hashed * 64, scope="admin"
    )


def having(index: int, *keys: ApiKey) -> ClusterState:
    return ClusterState(index=index, api_keys={one.id: one for one in keys})


def flips(data: bytes) -> list[bytes]:
    flipped: list[bytes] = []
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        flipped.append(bytes(changed))
    return flipped


def log_of(stream: io.StringIO) -> Log:
    return Log(node="n", process="master", stream=stream)


@pytest.mark.parametrize(
    "kept",
    [
        PersistentState(42, NodeId("n0123456789"), began=True),
        PersistentState(7),
        PersistentState(1, NodeId("7")),
    ],
)
def test_no_flipped_bit_of_the_term_file_is_another_term_or_vote(
    kept: PersistentState, tmp_path: Path
) -> None:
    path = tmp_path / "term"
    keep_term(path, kept)
    whole = path.read_bytes()
    assert read_term(path) == kept
    for flipped in flips(whole):
        path.write_bytes(flipped)
        assert read_term(path) == PersistentState(garbled=True), flipped


@pytest.mark.parametrize(
    ("older", "kept"),
    [
        (b"7\n", PersistentState(7)),
        (b"42 n2 1\n", PersistentState(42, NodeId("n2"), began=True)),
        (b"42 - 0\n", PersistentState(42)),
    ],
)
def test_a_term_that_an_older_version_wrote_is_read(
    older: bytes, kept: PersistentState, tmp_path: Path
) -> None:
    (tmp_path / "term").write_bytes(older)
    assert read_term(tmp_path / "term") == kept


def test_a_damaged_term_file_is_kept_aside_said_and_not_written_over_as_if_it_were_sound(
    tmp_path: Path,
) -> None:
    path, stream = tmp_path / "term", io.StringIO()
    keep_term(path, PersistentState(42, NodeId("n2"), began=True))
    path.write_bytes(flips(path.read_bytes())[0])
    term_file = TermFile(path, log_of(stream))
    assert not term_file.keep_began(), "0 terms and no vote are not what was lost"
    assert read_term(path).garbled
    assert "the term file is damaged" in stream.getvalue()
    assert (tmp_path / "term.damaged").exists()


def test_no_flipped_bit_of_the_keys_is_another_list_of_keys() -> None:
    data = render_keys(StoredKeys(12, {key(1).id: key(1)}))
    assert parse_keys(data) == StoredKeys(12, {key(1).id: key(1)})
    for flipped in flips(data):
        with pytest.raises(Damaged):
            parse_keys(flipped)


def test_what_is_sealed_is_read_back_whatever_it_holds() -> None:
    for content in ("", "a", "a crc32:00000000\n", "ä\nö", " crc32:"):
        assert unsealed(sealed(content)) == content


def test_a_lost_log_is_given_the_keys_that_were_kept() -> None:
    kept = StoredKeys(9, {one.id: one for one in (key(1, "b"), key(2))})
    state = having(3, key(1), key(3))
    bodies = returned_keys(kept, state, lost=True)
    assert bodies == [
        ApiKeyRemoved(key_id=key(3).id),
        ApiKeyChanged(key=key(1, "b")),
        ApiKeyAdded(key=key(2)),
    ]
    for body in bodies:
        event = Event(term=1, index=state.index + 1, at_s=0.0, body=body)
        state = apply(state, event)
    assert state.api_keys == kept.keys


def test_a_log_that_ends_before_the_last_change_of_keys_gets_them_though_it_looks_whole() -> None:
    kept = StoredKeys(9, {key(1).id: key(1)})
    assert returned_keys(kept, having(8), lost=False) == [ApiKeyAdded(key=key(1))]
    assert returned_keys(kept, having(9), lost=False) == [], "a whole log is believed"


def test_a_lost_log_whose_keys_are_nowhere_gets_one_that_nobody_has() -> None:
    assert returned_keys(None, having(3), lost=True) == [ApiKeyAdded(key=LOST_KEYS)]
    assert returned_keys(None, having(3, LOST_KEYS), lost=True) == []
    assert returned_keys(None, having(3), lost=False) == []
    assert keys_were_lost(having(3, LOST_KEYS).api_keys) and not keys_were_lost({})
    assert LOST_KEYS.is_expired(0.0), "it opens nothing"


def test_a_file_that_cannot_be_written_is_removed_for_an_old_one_would_be_believed() -> None:
    disk, stream = Disk(), io.StringIO()
    keys_file = KeysFile(PATH, log_of(stream), disk)  # pyright: ignore[reportArgumentType]
    keys_file.keep(having(3))
    assert parse_keys(disk.read(PATH)) == StoredKeys(3, {})
    disk.full = True
    keys_file.keep(having(4, key(1)))
    assert PATH not in disk.names and "cannot save the API keys" in stream.getvalue()
    disk.full = False
    keys_file.keep(having(5, key(1)))
    assert parse_keys(disk.read(PATH)) == StoredKeys(5, {key(1).id: key(1)})


def test_a_damaged_file_of_keys_is_said_and_kept_aside_and_counts_as_none() -> None:
    disk, stream = Disk(), io.StringIO()
    KeysFile(PATH, log_of(stream), disk).keep(having(3, key(1)))  # pyright: ignore[reportArgumentType]
    disk.names[PATH].data[20] ^= 1
    assert KeysFile(PATH, log_of(stream), disk).content is None  # pyright: ignore[reportArgumentType]
    assert "the API key file is damaged" in stream.getvalue()
    assert PATH.with_name("api-keys.damaged") in disk.names
