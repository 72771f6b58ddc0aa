"""Real stores and fetchers, real sockets, real disks; some of them killed."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bus.client import Letters, Speaker
from bus.links.reactor import PollReactor
from bus.links.transport import Link
from bus.wire.codec import decode
from bus.wire.errors import PortTaken
from bus.wire.ids import Boot, ModelId, NodeId
from bus.wire.messages.weights import (
    PIECE_BYTES,
    AskManifest,
    AskPiece,
    FileEntry,
    Manifest,
    PieceSent,
    WeightsRefused,
)
from bus.wire.messages.wire import Message
from conf.paths import bundled_models
from tests.harness.seeds import seed_for
from tests.harness.weights_node import FetchNode, StoreNode
from tests.worker.models.test_weights import CONFIG, write_model
from tests.worker.transfer.test_download import entry
from worker.models.files import ORIGIN_FILE
from worker.models.manifest import manifest_of
from worker.models.weights import Shelf, Weights
from worker.transfer.source import MAX_WINDOW
from worker.transfer.store import MAX_OPEN

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tests" / "harness" / "weights_node.py"
MB = 1 << 20


class Lan:
    """Nodes in one reactor, and others as processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reactor = PollReactor()
        self.nodes: list[StoreNode | FetchNode] = []
        self.children: list[subprocess.Popen[str]] = []

    def store(
        self,
        folder: Path,
        *,
        model: str = "m",
        name: str = "giver",
        address: str = "tcp://127.0.0.1:*",
    ) -> StoreNode:
        state = self.folder / f"{name}-state"
        node = StoreNode(self.reactor, {model: folder}, state, address)
        self.nodes.append(node)
        return node

    def getter(self, name: str = "getter", *, margin_bytes: int = 0) -> FetchNode:
        node = FetchNode(self.reactor, self.folder / name, margin_bytes=margin_bytes)
        self.nodes.append(node)
        return node

    def child(self, *words: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", str(SCRIPT), *map(str, words)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.children.append(child)
        return child

    def kill(self, child: subprocess.Popen[str]) -> None:
        """SIGKILL, and wait until it is gone."""
        self.children.remove(child)
        child.kill()
        child.communicate()

    def until(self, condition: Callable[[], object], what: str, within_s: float = 100.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"not in time: {what}"
            self.reactor.turn(0.02)

    def fetched(self, getter: FetchNode, model: str = "m") -> Path:
        self.until(lambda: getter.news(model).reading.phase in ("done", "failed"), "an end")
        news = getter.news(model)
        assert news.reading.phase == "done", news.refusal
        return getter.models / model

    def refusal(self, getter: FetchNode, model: str = "m") -> str:
        self.until(lambda: getter.news(model).reading.phase in ("done", "failed"), "an end")
        refusal = getter.news(model).refusal
        assert refusal is not None
        return refusal.message

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        for child in list(self.children):
            self.kill(child)
        self.reactor.close()


@pytest.fixture
def lan(tmp_path: Path) -> Iterator[Lan]:
    made = Lan(tmp_path)
    yield made
    made.close()


def garbage(size: int) -> bytes:
    return random.Random(seed_for("GARBAGE", 3)).randbytes(size)


def big_model(folder: Path, megabytes: int, seed: int = 1) -> Path:
    """A model of random weights in two safetensors files and some small files."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    chance = random.Random(seed)
    for number, size in enumerate((megabytes // 4, megabytes - megabytes // 4)):
        shape = {"dtype": "BF16", "shape": [size * MB // 2], "data_offsets": [0, size * MB]}
        header = json.dumps({f"w{number}": shape}).encode()
        with open(folder / f"model-{number}.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            for _ in range(size):
                file.write(chance.randbytes(MB))
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ORIGIN_FILE
    }


def staged_bytes(models: Path) -> int:
    """What the notes of all stages say is there, in pieces."""
    notes = (models / ".staging").glob("*/have/*")
    return sum(note.read_bytes()[:-1].count(1) for note in notes) * PIECE_BYTES


def test_the_bundled_model_comes_whole_and_is_announced_code_stays_where_it_is(lan: Lan) -> None:
    (bundled,) = bundled_models().values()
    store, getter = lan.store(bundled, model="shoal-tiny"), lan.getter()
    getter.want("shoal-tiny", store.address)
    place = lan.fetched(getter, "shoal-tiny")
    found, there = content(place), content(bundled)
    assert found == {path: there[path] for path in found}
    assert {"config.json", "model.safetensors", "tokenizer.json", "card.toml"} <= set(found)
    assert not any(path.endswith((".py", ".md")) for path in found)
    (card,) = Weights(Shelf({}, (getter.models,), None, float32=True)).look()
    (right,) = Weights(Shelf({"shoal-tiny": bundled}, (), None, float32=True)).look()
    assert (card.origin, right.origin, len(card.sources)) == ("copied", "bundled", 1)
    same = {"path": "", "bundled": False, "modified_at_s": 0}
    same |= {"origin": "put", "sources": (), "card_at_s": 0.0}
    assert card.model_copy(update=same) == right.model_copy(update=same)
    assert list((getter.models / ".staging").iterdir()) == []


def test_a_model_of_200_mb_comes_from_two_nodes_each_byte_once(lan: Lan) -> None:
    folder = big_model(lan.folder / "big", 200)
    one, two = lan.store(folder, name="one"), lan.store(folder, name="two")
    getter = lan.getter()
    began_at = time.monotonic()
    getter.want("owner/m", one.address, two.address)
    getter.fetcher.cancel(ModelId("owner/m"))
    for store in (one, two):
        store.store.offers({ModelId("owner/m"): folder})
    getter.want("owner/m", one.address, two.address)
    place = lan.fetched(getter, "owner/m")
    took_s = time.monotonic() - began_at
    assert content(place) == content(folder)
    news = getter.news("owner/m")
    assert news.received_bytes == news.reading.total_bytes == news.reading.done_bytes
    print(f"200 MB in {took_s:.1f} s, hashing at both ends included")


def test_hashes_are_computed_once_and_anew_only_for_what_has_changed(lan: Lan) -> None:
    folder = big_model(lan.folder / "m", 8)
    first = lan.store(folder)
    getter = lan.getter()
    getter.want("m", first.address)
    lan.fetched(getter)
    kept = {path: path.stat().st_mtime_ns for path in (lan.folder / "giver-state").iterdir()}
    assert len(kept) == 4

    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": 512}))
    again = lan.store(folder)
    other = lan.getter("other")
    other.want("m", again.address)
    assert content(lan.fetched(other)) == content(folder)
    now = {path: path.stat().st_mtime_ns for path in (lan.folder / "giver-state").iterdir()}
    assert sum(now[path] != at for path, at in kept.items()) == 1


def test_a_fetch_that_is_killed_goes_on_where_it_was(lan: Lan) -> None:
    folder = big_model(lan.folder / "big", 200)
    store = lan.store(folder)
    models = lan.folder / "getter"
    child = lan.child("fetch", store.address, "m", models)
    lan.until(lambda: staged_bytes(models) >= 60 * MB, "a third of the model")
    lan.kill(child)
    kept = staged_bytes(models)
    assert 60 * MB <= kept < 195 * MB and not (models / "m").exists()

    getter = lan.getter()
    getter.want("m", store.address)
    place = lan.fetched(getter)
    assert content(place) == content(folder)
    news = getter.news("m")
    missing = news.reading.total_bytes - kept
    assert news.received_bytes <= missing + 4 * MB, "the last piece of each file is shorter"
    print(f"killed with {kept // MB} MB there; {news.received_bytes // MB} MB came afterwards")


def test_kill_after_kill_what_came_stays(lan: Lan) -> None:
    folder = big_model(lan.folder / "big", 100)
    store = lan.store(folder)
    models = lan.folder / "getter"
    kept = [0]
    for _ in range(4):
        child = lan.child("fetch", store.address, "m", models)
        lan.until(lambda: staged_bytes(models) >= kept[-1] + 15 * MB, "some more of the model")
        lan.kill(child)
        kept.append(staged_bytes(models))
    assert kept == sorted(kept)
    getter = lan.getter()
    getter.want("m", store.address)
    assert content(lan.fetched(getter)) == content(folder)
    news = getter.news("m")
    most = news.reading.total_bytes - kept[-1] + 4 * MB
    assert news.received_bytes <= most, "the last piece of each file is shorter"


def test_a_source_that_is_killed_in_the_middle_is_replaced_by_the_other(lan: Lan) -> None:
    folder = big_model(lan.folder / "big", 120)
    child = lan.child("store", folder, "m", lan.folder / "child-state")
    assert child.stdout is not None
    dying = child.stdout.readline().strip()
    getter = lan.getter()
    getter.want("m", dying)
    lan.until(lambda: getter.news("m").received_bytes >= 20 * MB, "some of the model")
    lan.kill(child)
    living = lan.store(folder)
    getter.want("m", dying, living.address)
    assert content(lan.fetched(getter)) == content(folder)
    news = getter.news("m")
    assert news.received_bytes == news.reading.total_bytes, "nothing came twice"


def test_a_store_that_starts_again_is_found_again(lan: Lan) -> None:
    folder = big_model(lan.folder / "big", 64)
    store = lan.store(folder)
    getter = lan.getter()
    getter.want("m", store.address)
    lan.until(lambda: getter.news("m").received_bytes >= 10 * MB, "some of the model")
    store.close()
    lan.nodes.remove(store)

    def started() -> bool:
        try:
            lan.store(folder, address=store.address)
        except PortTaken:  # ZeroMQ gives a port back a moment after the socket was closed
            return False
        return True

    lan.until(started, "its port")
    assert content(lan.fetched(getter)) == content(folder)


def test_cancelling_leaves_a_stage_that_the_next_attempt_goes_on_with(lan: Lan) -> None:
    folder = big_model(lan.folder / "big", 64)
    store, getter = lan.store(folder), lan.getter()
    getter.want("m", store.address)
    lan.until(lambda: getter.news("m").received_bytes >= 10 * MB, "some of the model")
    came = getter.news("m").received_bytes
    getter.fetcher.cancel(ModelId("m"))
    assert getter.fetcher.news() == {} and not (getter.models / "m").exists()
    getter.want("m", store.address, attempt=2)
    assert content(lan.fetched(getter)) == content(folder)
    assert came + getter.news("m").received_bytes == getter.news("m").reading.total_bytes


def test_a_file_that_changes_at_the_source_is_never_mixed_with_what_it_was(lan: Lan) -> None:
    folder = big_model(lan.folder / "big", 64)
    store, getter = lan.store(folder), lan.getter()
    getter.want("m", store.address)
    lan.until(lambda: getter.news("m").received_bytes >= 10 * MB, "some of the model")
    with open(folder / "model-1.safetensors", "r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"other")
    assert content(lan.fetched(getter)) == content(folder)


def test_bytes_that_rot_in_the_stage_are_found_and_fetched_again(lan: Lan) -> None:
    folder = big_model(lan.folder / "big", 48)
    store, getter = lan.store(folder), lan.getter()
    getter.want("m", store.address)
    lan.until(lambda: getter.news("m").received_bytes >= 30 * MB, "most of the model")
    getter.fetcher.cancel(ModelId("m"))
    (stage,) = (getter.models / ".staging").iterdir()
    with open(stage / "files" / "model-1.safetensors", "r+b") as file:
        file.seek(3 * MB + 7)
        file.write(b"rotten")
    getter.want("m", store.address, attempt=2)
    assert content(lan.fetched(getter)) == content(folder)


def test_what_lies_in_the_way_is_named_and_left_alone(lan: Lan) -> None:
    folder = write_model(lan.folder / "small")
    store, getter = lan.store(folder), lan.getter()
    (getter.models / "m").mkdir(parents=True)
    (getter.models / "m" / "diary.txt").write_text("dear diary")
    getter.want("m", store.address)
    assert "already exists" in lan.refusal(getter)
    assert (getter.models / "m" / "diary.txt").read_text() == "dear diary"


def test_a_disk_without_room_is_refused_with_numbers(lan: Lan) -> None:
    store = lan.store(write_model(lan.folder / "small"))
    getter = lan.getter(margin_bytes=1 << 60)
    getter.want("m", store.address)
    assert "not enough disk space" in lan.refusal(getter)
    refusal = getter.news("m").refusal
    assert refusal is not None and refusal.reason == "disk_full"


def test_only_files_of_the_model_are_given_and_no_link_leads_out(lan: Lan) -> None:
    folder = write_model(lan.folder / "m")
    secret = lan.folder / "secret.json"
    secret.write_text("{}")
    (folder / "leak.json").symlink_to(secret)
    (folder / "inside.json").symlink_to("config.json")
    (folder / ".hidden.json").write_text("{}")
    (folder / "code.py").write_text("")
    (folder / "extra").mkdir()
    (folder / "extra" / "more.json").write_text("{}")
    (folder / "deep" / "deeper").mkdir(parents=True)
    (folder / "deep" / "deeper" / "no.json").write_text("{}")
    (folder / "linked").symlink_to(lan.folder)
    getter = lan.getter()
    getter.want("m", lan.store(folder).address)
    assert set(content(lan.fetched(getter))) == {
        "config.json", "model.safetensors", "tokenizer.json", "inside.json", "extra/more.json",
    }  # fmt: skip


def test_a_snapshot_of_the_hugging_face_cache_is_given_through_its_links(lan: Lan) -> None:
    repository = lan.folder / "hub" / "models--owner--m"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / "abc"
    real = write_model(lan.folder / "real")
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(real.iterdir())):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(Path("../../blobs") / str(number))
    getter = lan.getter()
    getter.want("owner/m", lan.store(snapshot, model="owner/m").address)
    place = lan.fetched(getter, "owner/m")
    assert set(content(place)) == {"config.json", "model.safetensors", "tokenizer.json"}
    assert not any(path.is_symlink() for path in place.iterdir())


# --- those who do not keep to the rules ---


class Fake:
    """A ROUTER that says what a test has it say."""

    def __init__(self, lan: Lan, answer: Callable[[Message], list[bytes | Message]]) -> None:
        self.link = Link("router")
        self.address = self.link.bind("tcp://127.0.0.1:*")
        self.pack = Letters(Speaker(NodeId("fake"), "worker", Boot("b"))).write
        self.lan, self.answer = lan, answer
        lan.reactor.watch(self.link, self.received)
        lan.nodes.append(self)  # type: ignore[arg-type]

    def received(self, frames: list[bytes]) -> None:
        for said in self.answer(decode(frames[1]).message):
            self.link.send(frames[0], said if isinstance(said, bytes) else self.pack(said))

    def close(self) -> None:
        self.lan.reactor.unwatch(self.link)
        self.link.close()


HOSTILE = [
    "../evil.json", "/etc/evil.json", "a/../../evil.json", "..", "a/b/c.json", ".ssh/evil.json",
    "evil.py", "a\\b.json", "evil\n.json", "", "config.json/x.json", "CONFIG.json",
]  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE)
def test_a_manifest_that_names_other_places_is_refused_and_writes_nothing(
    lan: Lan, path: str
) -> None:
    named = ["config.json", "model.safetensors", path]
    shown = manifest_of(ModelId("m"), [entry(one, b"{}") for one in named])
    getter = lan.getter()
    getter.want("m", Fake(lan, lambda _message: [shown]).address)
    assert "sent an invalid manifest" in lan.refusal(getter)
    assert not getter.models.exists()


def test_garbage_from_a_source_is_passed_over(lan: Lan) -> None:
    folder = write_model(lan.folder / "m")
    files = content(folder)
    shown = manifest_of(ModelId("m"), [entry(path, found) for path, found in files.items()])
    noise: list[bytes | Message] = [b"", b"\xc1garbage", b"\x90", garbage(3 * MB)]
    getter = lan.getter()

    def answer(message: Message) -> list[bytes | Message]:
        return [*noise, shown] if isinstance(message, AskManifest) else noise

    fake = Fake(lan, answer)
    getter.want("m", fake.address)
    lan.until(lambda: getter.news("m").reading.phase == "fetching", "the stage")
    getter.want("m", fake.address, lan.store(folder).address)
    assert content(lan.fetched(getter)) == files


def test_a_store_passes_garbage_over_and_bounds_what_one_asker_may_have_open(lan: Lan) -> None:
    folder = big_model(lan.folder / "big", 24)
    store = lan.store(folder)
    pack = Letters(Speaker(NodeId("asker"), "worker", Boot("b"))).write
    heard: list[tuple[Message, bytes]] = []
    link = Link("dealer")
    lan.reactor.watch(link, lambda f: heard.append((decode(f[0]).message, b"".join(f[1:]))))
    link.connect(store.address)
    for junk in (
        b"",
        b"junk",
        garbage(5000),
        pack(PieceSent(digest="", path="", offset=0)),
    ):
        link.send(junk)
    link.send(pack(AskManifest(model=ModelId("m"))), b"second frame")
    link.send(pack(AskManifest(model=ModelId("m"))))
    lan.until(lambda: any(isinstance(one, Manifest) for one, _ in heard), "a manifest")
    (manifest,) = [one for one, _ in heard if isinstance(one, Manifest)]
    heard.clear()
    path = "model-1.safetensors"

    def ask(offset: int, *, name: str = path, digest: str = manifest.digest) -> None:
        asked = AskPiece(digest=digest, path=name, offset=offset, length=PIECE_BYTES)
        link.send(pack(asked))

    for number in range(MAX_OPEN + 4):
        ask((number % 17) * MB)
    lan.until(lambda: len(heard) == MAX_OPEN + 4, "an answer to each")
    busy = [one for one, _ in heard if isinstance(one, WeightsRefused)]
    assert {one.reason for one in busy} <= {"busy"} and len(busy) <= 4
    there = (folder / path).read_bytes()
    for said, found in heard:
        if isinstance(said, PieceSent):
            assert found == there[said.offset : said.offset + PIECE_BYTES]
    heard.clear()
    ask(1 << 40)
    ask(0, name="../../etc/passwd")
    ask(0, digest="0" * 64)
    lan.until(lambda: len(heard) == 3, "an answer to each")
    reasons = [one.reason for one, _ in heard if isinstance(one, WeightsRefused)]
    assert sorted(reasons) == ["bad_request", "bad_request", "unknown_digest"]
    lan.reactor.unwatch(link)
    link.close()


def test_an_oversized_question_costs_its_sender_the_connection_and_nobody_else(lan: Lan) -> None:
    folder = big_model(lan.folder / "big", 32)
    store, getter = lan.store(folder), lan.getter()
    bully = Link("dealer")
    bully.connect(store.address)
    getter.want("m", store.address)
    for _ in range(20):
        bully.send(bytes(4 * MB))
    assert content(lan.fetched(getter)) == content(folder)
    bully.close()


def test_a_store_tells_how_far_hashing_is_to_who_asks_meanwhile(lan: Lan) -> None:
    store = lan.store(big_model(lan.folder / "big", 16))
    getters = [lan.getter("a"), lan.getter("b")]
    for getter in getters:
        getter.want("m", store.address)
    for getter in getters:
        lan.fetched(getter)
    assert len(list((lan.folder / "giver-state").iterdir())) == 4


def test_an_unknown_model_is_refused_by_name(lan: Lan) -> None:
    store, getter = lan.store(write_model(lan.folder / "m")), lan.getter()
    getter.want("other", store.address)
    assert "other is not on this node's disk" in lan.refusal(getter, "other")
    assert "n0 at tcp://127.0.0.1" in lan.refusal(getter, "other")


def test_a_store_with_a_limit_keeps_to_it(lan: Lan) -> None:
    folder, rate = big_model(lan.folder / "big", 6), 12e6
    store = StoreNode(lan.reactor, {"m": folder}, lan.folder / "s", bytes_per_s=rate)
    lan.nodes.append(store)
    getter = lan.getter()
    began_at = time.monotonic()
    getter.want("m", store.address)
    assert content(lan.fetched(getter)) == content(folder)
    assert time.monotonic() - began_at >= (getter.news("m").received_bytes - MB) / rate


def test_windows_are_smaller_than_what_a_store_takes() -> None:
    assert MAX_WINDOW < MAX_OPEN


def test_entries_are_made_as_a_store_makes_them(tmp_path: Path) -> None:
    made: FileEntry = entry("a.json", b"x" * (PIECE_BYTES + 1))
    assert len(made.piece_hashes) == 64
