"""What was recorded on an earlier commit is read, continued and made again by the present code:
messages, frames, files on disks, pages, and every name that somebody outside knows.

A failure here says that another node, a disk or a user's script meets something else than before.
Where that is meant, `tests/recorded/record.py` makes the recordings anew, by hand.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import zstandard

from bus.calls import CALLS
from bus.links.cluster_key import ClusterKeys, KeyFiles
from bus.links.keyring import open_keyring, read_keys
from bus.membership.peer_memory import PeerMemory, Remembered
from bus.process.identity import FILE, node_id
from bus.replica.state import ClusterState
from bus.wire.codec import KINDS, decode, encode, pack, pack_body, unpack, unpack_body
from bus.wire.data_frames import (
    pack_to_gateway,
    pack_to_runner,
    unpack_to_gateway,
    unpack_to_runner,
    unpack_to_verifier,
)
from bus.wire.errors import BadMessage
from bus.wire.messages.events import Event, EventBody, NodeRenamed
from bus.wire.messages.peers import FIRST_WORDS, KnownPeer
from bus.wire.messages.wire import PROTOCOL_MIN
from conf.settings import load_settings
from master.consensus.term_file import read_term
from master.consensus.types import PersistentState
from runner.group.rank_frames import pack_rank, unpack_to_lead, unpack_to_rank
from tests.recorded import wire
from tests.recorded.disk import (
    KEYS,
    derived_secrets,
    held,
    journal_in,
    known_hashes,
    made_manifest,
    make_home,
    make_journal,
    make_small_files,
    make_stage,
    never,
    quiet_log,
    told_flags,
    told_state,
    tree,
)
from tests.recorded.history import N1, N2, N3, folded, story
from tests.recorded.names import TABLES
from tests.recorded.record import DATA, as_text, pages
from worker.models.file_hashes import Hashes
from worker.models.layer_bytes import SUFFIX
from worker.models.local_models import parts_held
from worker.models.manifest import problem_of
from worker.transfer.staging import Stage


def recorded(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text())


SPOKEN: dict[str, list[str]] = recorded("kinds")
FRAMES: dict[str, Any] = recorded("frames")
CALLED: dict[str, Any] = recorded("calls")
TAGS: list[str] = FRAMES.pop("entries")
WAYS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "to_runner": (pack_to_runner, unpack_to_runner),
    "to_gateway": (pack_to_gateway, unpack_to_gateway),
    "to_proposer": (pack_to_runner, unpack_to_runner),
    "to_verifier": (pack_to_gateway, unpack_to_verifier),
    "to_rank": (pack_rank, unpack_to_rank),
    "to_lead": (pack_rank, unpack_to_lead),
}
TAGGED = [(way, tag) for way, tagged in FRAMES.items() for tag in tagged]


def in_bytes(texts: list[str]) -> list[bytes]:
    return [b64decode(text) for text in texts]


@pytest.fixture(autouse=True)
def without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SHOAL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A copy of the recordings that may be written to, private as a node's files are."""
    copy = shutil.copytree(DATA, tmp_path / "disk")
    for path in (copy / "small").iterdir():
        path.chmod(0o600)
    return copy


# --- what crosses wires -----------------------------------------------------------------------


def test_every_kind_is_recorded_and_every_recorded_kind_is_still_spoken() -> None:
    assert set(SPOKEN) == set(KINDS)


@pytest.mark.parametrize("kind", SPOKEN)
def test_a_recorded_kind_is_read_and_said_again(kind: str) -> None:
    for data in in_bytes(SPOKEN[kind]):
        assert unpack(data)[1] == kind
        assert encode(decode(data)) == data


@pytest.mark.parametrize("kind", sorted(set(SPOKEN) - FIRST_WORDS))
def test_what_an_earlier_build_of_this_node_says_is_read(kind: str) -> None:
    """Processes of one node read every version from the first: theirs may be updated apart."""
    for data in in_bytes(SPOKEN[kind]):
        version, *said = unpack(data)
        assert version > PROTOCOL_MIN
        for earlier in range(PROTOCOL_MIN, version):
            assert decode(pack([earlier, *said])) == decode(data)


def test_the_same_is_said_today() -> None:
    said = wire.kinds()
    for kind, texts in SPOKEN.items():
        then = in_bytes(texts)
        assert [unpack(data) for data in said[kind]] == [unpack(data) for data in then], kind
    assert as_text(said) == SPOKEN


def test_a_recorded_call_is_read_and_packed_again() -> None:
    for part, by_name in CALLED.items():
        assert set(by_name) == set(CALLS), part
        for name, texts in by_name.items():
            cls = getattr(CALLS[name], part)
            for data in in_bytes(texts):
                message = unpack_body(cls, data, limit_bytes=len(data))
                assert unpack(pack_body(message)) == unpack(data), name


def test_the_same_is_called_today() -> None:
    assert {part: as_text(packed) for part, packed in wire.calls().items()} == CALLED


def test_every_frame_is_recorded() -> None:
    assert wire.untold() == set()
    assert wire.entry_tags() == TAGS
    assert set(FRAMES) == set(WAYS)


@pytest.mark.parametrize(("way", "tag"), TAGGED)
def test_a_recorded_frame_is_read_and_packed_again(way: str, tag: str) -> None:
    packs, unpacks = WAYS[way]
    for data in in_bytes(FRAMES[way][tag]):
        assert unpack(data)[0] == tag
        assert packs(unpacks(data)) == data


def test_the_same_is_packed_today() -> None:
    packed = wire.frames()
    for way, tag in TAGGED:
        then = in_bytes(FRAMES[way][tag])
        assert [unpack(data) for data in packed[way].get(tag, [])] == list(map(unpack, then)), tag
    assert {way: as_text(tagged) for way, tagged in packed.items()} == FRAMES


LEAST_FIELDS = {"traced": 7, "submit": 5, "accepted": 4}
"""Of what has last fields that senders may leave out: its fields without those."""
MAY_LACK = 2
"""No frame has more fields that senders may leave out."""


@pytest.mark.parametrize(("way", "tag"), TAGGED)
def test_a_frame_with_a_field_too_many_or_too_few_is_refused(way: str, tag: str) -> None:
    unpacks = WAYS[way][1]
    for data in in_bytes(FRAMES[way][tag]):
        right = unpack(data)
        wrong = [[*right, *[0] * (MAY_LACK + 1)], [f"{tag}x", *right[1:]], data[:-1]]
        fewer = right[: LEAST_FIELDS.get(tag, len(right)) - 1]
        wrong += [fewer] if fewer else []
        for one in wrong:
            with pytest.raises(BadMessage):
                unpacks(one if isinstance(one, bytes) else pack(one))


# --- what lies on disks -----------------------------------------------------------------------


def test_the_story_holds_every_event() -> None:
    union = get_args(EventBody)[0]
    every = {cls.model_fields["kind"].default for cls in get_args(union)}
    assert {event.body.kind for event in story()} == every


def test_a_recorded_journal_is_opened_and_goes_on(disk: Path) -> None:
    journal = journal_in(disk / "journal")
    start, events = journal.open()
    state = folded(start, events)
    assert told_state(state) == recorded("state")
    last = story()[-1]
    assert state.index == last.index
    body = NodeRenamed(node=N2, name="later")
    more = last.model_copy(update={"index": last.index + 1, "body": body, "command_id": None})
    behind = folded(state, [more])
    journal.append(more, state_after=behind)
    journal.close()
    again = journal_in(disk / "journal")
    assert folded(*again.open()) == behind
    again.close()
    assert behind.nodes[N2].name == "later"


def unarchived(folder: Path) -> dict[str, bytes]:
    reader = zstandard.ZstdDecompressor()
    return {
        path.name: reader.stream_reader(io.BytesIO(path.read_bytes())).read()
        for path in sorted((folder / "archives").iterdir())
    }


def test_the_same_journal_is_written_today(tmp_path: Path) -> None:
    state = make_journal(tmp_path)
    assert told_state(state) == recorded("state")
    assert (tmp_path / "events.log").read_bytes() == (DATA / "journal/events.log").read_bytes()
    assert unarchived(tmp_path) == unarchived(DATA / "journal")


def test_archived_segments_and_the_log_after_them_are_one_story(tmp_path: Path) -> None:
    parts = [*unarchived(DATA / "journal").values(), (DATA / "journal/events.log").read_bytes()]
    assert len(parts) > 1
    state, told = ClusterState(), list[Event]()
    for number, part in enumerate(parts):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "events.log").write_bytes(part)
        journal = journal_in(folder)
        snapshot, events = journal.open()
        journal.close()
        assert snapshot == state, "each begins with what came before"
        state = folded(state, events)
        told += events
    assert told == story()


def test_recorded_terms_are_read(disk: Path) -> None:
    assert read_term(disk / "small" / "term") == PersistentState(7, N2, True)
    assert read_term(disk / "small" / "term-unvoted") == PersistentState(3)
    (disk / "term").write_text("5\n")
    assert read_term(disk / "term") == PersistentState(5)


def test_recorded_peers_and_nodes_are_known_again(disk: Path) -> None:
    known = (KnownPeer(node=N1, addresses=("10.0.0.1:24154",)), KnownPeer(node=N2, addresses=()))
    peers = PeerMemory(disk / "small" / "peers.json", quiet_log())
    assert peers.saved == Remembered(known, frozenset({N3}))
    files = KeyFiles(disk / "small" / "cluster-key", disk / "small" / "known-nodes")
    keyring = open_keyring(files, node=N1, log=quiet_log())
    assert keyring is not None and keyring.known_nodes == {N1, N2, N3}
    (disk / FILE).write_text("n0123456789\n")
    assert node_id(disk) == "n0123456789"


def test_recorded_keys_are_read_and_the_same_follows_from_them(disk: Path) -> None:
    settled = ClusterKeys(KEYS[0])
    prepared = settled.prepare(KEYS[1])
    assert read_keys(disk / "small" / "cluster-key") == settled
    assert read_keys(disk / "small" / "cluster-key-prepared") == prepared
    assert read_keys(disk / "small" / "cluster-key-switched") == prepared.switch()
    assert derived_secrets() == recorded("noted")["secrets"]


def test_the_same_small_files_are_written_today(tmp_path: Path) -> None:
    make_small_files(tmp_path)
    made = tree(tmp_path)
    then = tree(DATA / "small")
    remembered = then.pop("up.json")
    assert made == then
    make_home(tmp_path / "home")
    assert (tmp_path / "home" / "state" / "up.json").read_bytes() == remembered


def test_what_up_was_told_is_remembered(disk: Path, tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path / "home")
    settings.paths.state.mkdir(parents=True)
    shutil.copy(disk / "small" / "up.json", settings.paths.up_file)
    assert told_flags(tmp_path / "home") == recorded("noted")["flags"]


def test_kept_hashes_are_believed_and_kept_as_before(tmp_path: Path) -> None:
    assert known_hashes(tmp_path) == recorded("noted")["hashes"]
    file = held(tmp_path / "model", "config.json")
    [kept] = (tmp_path / "hashes").iterdir()
    mark = [str(file.real), file.size_bytes, file.changed_ns, file.inode]
    kept.write_bytes(pack([*mark, "ab" * 32, bytes(32)]))
    entry = Hashes(tmp_path / "hashes").of(file, lambda _: None, never)
    assert (entry.sha256, entry.piece_hashes) == ("ab" * 32, bytes(32))


def test_a_recorded_stage_goes_on(disk: Path, tmp_path: Path) -> None:
    manifest = made_manifest(tmp_path / "made")
    assert problem_of(manifest, manifest.model) is None
    models = disk / "models"
    [part] = parts_held(models)
    assert (part.model, part.layers) == (manifest.model, ((0, 2), (4, 7)))
    staged = Stage(models, manifest).open(never)
    assert staged.have == {
        "config.json": b"\1",
        f"model{SUFFIX}": b"\1",
        "sub/tokenizer.json": b"\0",
    }
    assert parts_held(models) == (part,)


def test_the_same_stage_is_written_today(tmp_path: Path) -> None:
    make_stage(tmp_path / "models", made_manifest(tmp_path / "made"))
    assert tree(tmp_path / "models") == tree(DATA / "models")


# --- what users and programs know ---------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_names_is_as_it_was(name: str) -> None:
    assert json.loads(json.dumps(TABLES[name]())) == recorded(f"names/{name}")


def test_no_recorded_table_is_left_out() -> None:
    assert {path.stem for path in (DATA / "names").iterdir()} == set(TABLES)


def test_a_gateway_shows_the_same_pages(tmp_path: Path) -> None:
    shown, then = pages(tmp_path), recorded("pages")
    assert shown["/metrics"] == then["/metrics"]
    assert shown == then
