"""The process that pulls, against a hub on loopback: what is on the disk, and what it says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from bus.wire.messages.readings import PullState
from tests.harness.hub import Faults, HubServer, files_of
from tests.harness.pulling import REPOSITORY, pull
from worker.models.files import ORIGIN_FILE, origin_of
from worker.models.local_models import pulled_parts
from worker.pulling.order import HERE_ALREADY

pytestmark = pytest.mark.slow
MB = 1 << 20
TAKEN = (
    "1_Pooling/config.json",
    "chat_template.jinja",
    "config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "tokenizer.json",
    "vocab.txt",
)


def repository() -> dict[str, bytes]:
    """A repository with more than is needed."""
    dice = random.Random(7)
    return {
        ".gitattributes": b"*.safetensors filter=lfs",
        "README.md": b"words",
        "1_Pooling/config.json": b"{}",
        "adapter_config.json": b"{}",
        "card.toml": b"",
        "chat_template.jinja": b"{{ messages }}",
        "config.json": b'{"model_type": "llama"}',
        "consolidated.safetensors": dice.randbytes(MB),
        "model-00001-of-00002.safetensors": dice.randbytes(5 * MB + 17),
        "model-00002-of-00002.safetensors": dice.randbytes(3 * MB),
        "onnx/model.onnx": b"x",
        "onnx/config.json": b"{}",
        "pytorch_model.bin": dice.randbytes(MB),
        "tokenizer.json": dice.randbytes(200_000),
        "vocab.txt": b"",
        "with blank.json": b"{}",
    }


@pytest.fixture
def hub() -> Iterator[HubServer]:
    server = HubServer({REPOSITORY: repository()})
    yield server
    server.close()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def assert_whole(hub: HubServer, models: Path) -> None:
    """What is needed is there, byte for byte, and nothing is left beside it."""
    found = files_of(models / REPOSITORY)
    assert found.pop(ORIGIN_FILE) and tuple(sorted(found)) == TAKEN
    origin = origin_of(models / REPOSITORY)
    source = f"{REPOSITORY}@{hub.commit[:12]}"
    assert (origin.how, origin.sources, origin.revision) == ("pulled", (source,), hub.commit)
    assert origin.files.keys() == set(TAKEN)
    big = "model-00001-of-00002.safetensors"
    assert origin.files[big] == sha256(hub.repositories[REPOSITORY][big]).hexdigest()
    assert all(found[name] == hub.repositories[REPOSITORY][name] for name in TAKEN)
    assert not any((models / ".pulling").iterdir())


def assert_nothing_taken(models: Path) -> None:
    assert not (models / REPOSITORY).exists()


def needed_bytes(hub: HubServer) -> int:
    return sum(len(hub.repositories[REPOSITORY][name]) for name in TAKEN)


def failed(states: list[PullState], reason: str) -> PullState:
    last = states[-1]
    assert (last.phase, last.reason) == ("failed", reason), last
    return last


def test_what_a_model_needs_comes_and_nothing_else(hub: HubServer, models: Path) -> None:
    states = pull(hub, models)
    last = states[-1]
    assert last.phase == "done" and last.revision == hub.commit and last.files == len(TAKEN)
    assert last.done_bytes == last.total_bytes == last.received_bytes == needed_bytes(hub)
    assert_whole(hub, models)
    assert hub.sent.body_bytes == needed_bytes(hub)
    phases = list(dict.fromkeys(state.phase for state in states))
    assert phases[0] == "listing" and phases[-2:] == ["publishing", "done"]


def test_a_pull_that_holds_tells_what_would_come_and_asks_for_no_weights(
    hub: HubServer, models: Path
) -> None:
    states = pull(hub, models, kill_when=lambda one: one.forecast is not None, holds=True)
    forecast = states[-1].forecast
    assert states[-1].phase == "listing" and forecast is not None
    assert "num_hidden_layers" in forecast.why, "its configuration says too little"
    assert forecast.lacking_bytes == states[-1].total_bytes == needed_bytes(hub)
    assert set(hub.sent.of) == {"config.json"} and hub.sent.lists == 1
    assert_nothing_taken(models)


def test_a_pull_that_holds_counts_what_came_before(hub: HubServer, models: Path) -> None:
    hub.faults.bytes_per_s = 2.0 * MB
    states = pull(hub, models, kill_when=lambda one: one.done_bytes > 0.4 * one.total_bytes > 0)
    hub.faults.bytes_per_s = 0.0
    held = pull(hub, models, kill_when=lambda one: one.forecast is not None, holds=True)
    assert held[-1].forecast is not None
    assert held[-1].forecast.lacking_bytes <= needed_bytes(hub) - states[-1].done_bytes


def test_a_killed_pull_goes_on_where_it_was(hub: HubServer, models: Path) -> None:
    hub.faults.bytes_per_s = 2.0 * MB
    states = pull(hub, models, kill_when=lambda one: one.done_bytes > 0.4 * one.total_bytes > 0)
    assert states[-1].phase == "fetching"
    assert_nothing_taken(models)
    kept = states[-1].done_bytes
    hub.faults.bytes_per_s = 0.0
    hub.forget()
    again = pull(hub, models)
    assert again[-1].phase == "done"
    assert again[-1].received_bytes <= needed_bytes(hub) - kept
    assert hub.sent.body_bytes <= needed_bytes(hub) - kept
    assert_whole(hub, models)


def test_a_pull_that_did_not_end_is_said_and_so_is_one_under_way(
    hub: HubServer, models: Path
) -> None:
    hub.faults.bytes_per_s = 2.0 * MB
    meanwhile: list[str] = []

    def killed(state: PullState) -> bool:
        if state.done_bytes > 0.4 * state.total_bytes > 0:
            meanwhile.extend(one.reason for one in pulled_parts(models))
        return bool(meanwhile)

    last = pull(hub, models, kill_when=killed)[-1]
    (found,) = pulled_parts(models)
    assert meanwhile == ["being_pulled"]
    assert (found.name, found.reason, found.taken) == (REPOSITORY, "pulled_in_part", False)
    assert f"of {last.total_bytes / 1e6:,.1f} MB" in found.why
    assert (
        f"`shoal pull {REPOSITORY}`" in found.remedy and f"`shoal rm {REPOSITORY}`" in found.remedy
    )
    hub.faults.bytes_per_s = 0.0
    pull(hub, models)
    assert not list(pulled_parts(models))


def test_bytes_come_in_spite_of_drops(hub: HubServer, models: Path) -> None:
    hub.faults = Faults(drop_after=700_000, drop_times=4)
    assert pull(hub, models)[-1].phase == "done"
    assert_whole(hub, models)


def test_a_server_without_ranges_serves(hub: HubServer, models: Path) -> None:
    hub.faults = Faults(no_ranges=True)
    assert pull(hub, models)[-1].phase == "done"
    assert_whole(hub, models)


def test_a_server_without_ranges_sends_a_large_file_once(hub: HubServer, models: Path) -> None:
    hub.repositories[REPOSITORY]["model-00002-of-00002.safetensors"] = bytes(100 * MB)
    hub.faults = Faults(no_ranges=True)
    assert pull(hub, models)[-1].phase == "done"
    assert_whole(hub, models)
    print(f"{hub.sent.body_bytes / needed_bytes(hub):.2f} times its bytes")
    assert hub.sent.body_bytes < 1.2 * needed_bytes(hub)


def test_the_token_goes_to_the_hub_alone(hub: HubServer, models: Path) -> None:
    hub.faults = Faults(needs_token="secret")
    assert pull(hub, models, env={"HF_TOKEN": "secret"})[-1].phase == "done"
    assert hub.sent.tokens_at_cdn == 0
    assert_whole(hub, models)


def test_a_token_that_login_left_is_found(hub: HubServer, models: Path) -> None:
    hub.faults = Faults(needs_token="left")
    home = models.parent / "hf"
    home.mkdir()
    (home / "token").write_text("left")
    assert pull(hub, models)[-1].phase == "done"


def test_a_flipped_byte_is_fetched_again_once(hub: HubServer, models: Path) -> None:
    name = "model-00002-of-00002.safetensors"
    hub.faults = Faults(flip=name, flip_times=1)
    assert pull(hub, models)[-1].phase == "done"
    assert hub.sent.of[name] == 2 * 3 * MB
    assert_whole(hub, models)


@pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", "tokenizer.json"])
def test_a_file_that_is_always_wrong_is_refused(hub: HubServer, models: Path, name: str) -> None:
    hub.faults = Faults(flip=name, flip_times=1 << 30)
    last = failed(pull(hub, models), "spoilt")
    assert name in last.message
    assert_nothing_taken(models)
    hub.faults = Faults()
    assert pull(hub, models)[-1].phase == "done"
    assert_whole(hub, models)


def test_a_wrong_hash_in_the_list_is_refused(hub: HubServer, models: Path) -> None:
    listed = hub.siblings(REPOSITORY)
    next(one for one in listed if "lfs" in one and "model-" in one["rfilename"])["lfs"][
        "sha256"
    ] = "0" * 64
    hub.faults = Faults(listing=listed)
    failed(pull(hub, models), "spoilt")
    assert_nothing_taken(models)


def test_a_file_that_grows_is_refused(hub: HubServer, models: Path) -> None:
    hub.faults = Faults(grown="model-00001-of-00002.safetensors")
    assert "now has" in failed(pull(hub, models), "changed").message
    assert_nothing_taken(models)


def test_another_commit_than_listed_is_refused(hub: HubServer, models: Path) -> None:
    hub.faults = Faults(commit="f" * 40)
    failed(pull(hub, models), "changed")


def test_what_comes_packed_is_refused(hub: HubServer, models: Path) -> None:
    hub.faults = Faults(packed=True)
    failed(pull(hub, models), "changed")


@pytest.mark.parametrize(
    ("fault", "reason", "words"),
    [
        (Faults(status=403, code="GatedRepo"), "gated", "accept its license at"),
        (Faults(status=403), "gated", "403"),
        (Faults(status=401, code="RepoNotFound"), "not_found", "hf auth login"),
        (Faults(status=404, code="RepoNotFound"), "not_found", "has no model someone/tiny"),
        (Faults(status=404, code="RevisionNotFound"), "no_revision", "has no revision"),
        (Faults(status=429, retry_after="900"), "rate_limited", "for 900 s"),
        (Faults(status=429), "rate_limited", "limits the rate"),
        (Faults(status=500), "unreachable", "500"),
        (Faults(endless=True), "changed", "32 MiB"),
        (Faults(file_status=403, code="GatedRepo"), "gated", "accept its license at"),
        (Faults(file_status=404), "no_revision", "no longer has"),
        (Faults(silent=True), "unreachable", "sent nothing for"),
        (Faults(redirect="file:///etc/passwd"), "changed", "file:"),
    ],
)
def test_what_a_hub_refuses_is_said(
    hub: HubServer, models: Path, fault: Faults, reason: str, words: str
) -> None:
    hub.faults = fault
    last = failed(pull(hub, models), reason)
    assert words in last.message
    assert_nothing_taken(models)


def test_a_token_that_is_not_taken_is_named(hub: HubServer, models: Path) -> None:
    hub.faults = Faults(status=401)
    last = failed(pull(hub, models, env={"HF_TOKEN": "wrong"}), "unauthorized")
    assert "token" in last.message


def test_a_busy_hub_is_waited_for_as_long_as_it_asks(hub: HubServer, models: Path) -> None:
    hub.faults = Faults(status=429, retry_after="1", list_times=1)
    states = pull(hub, models)
    assert states[-1].phase == "done"
    assert any("waiting 1 s" in state.note for state in states)
    assert hub.sent.lists == 2


def test_a_busy_cdn_is_waited_for(hub: HubServer, models: Path) -> None:
    hub.faults = Faults(file_status=503, file_times=3)
    assert pull(hub, models)[-1].phase == "done"
    assert_whole(hub, models)


def test_nobody_at_the_hubs_address_is_said(hub: HubServer, models: Path) -> None:
    hub.close()
    last = failed(pull(hub, models), "unreachable")
    assert hub.url in last.message


def test_a_commit_that_vanished_is_said(hub: HubServer, models: Path) -> None:
    last = failed(pull(hub, models, revision="v9"), "no_revision")
    assert "'v9'" in last.message
    assert pull(hub, models, revision=hub.commit)[-1].phase == "done"


def test_a_disk_without_room_is_said_before_anything_comes(hub: HubServer, models: Path) -> None:
    last = failed(pull(hub, models, margin_bytes=1 << 60), "disk_full")
    assert "not enough disk space" in last.message and "to download" in last.message
    assert hub.sent.body_bytes == 0
    assert_nothing_taken(models)


def test_a_disk_that_fills_keeps_what_came(hub: HubServer, models: Path) -> None:
    # the system takes no file beyond 4 MB: an error of writing, as of a full disk
    last = failed(pull(hub, models, prefix=("prlimit", f"--fsize={4 * MB}")), "disk_full")
    assert "received so far are kept" in last.message
    hub.forget()
    assert pull(hub, models)[-1].phase == "done"
    assert_whole(hub, models)


@pytest.mark.parametrize(
    "name",
    [
        "../out.json",
        "/etc/out.json",
        "a/../../out.json",
        "a//b.json",
        "./x.json",
        "a\\b.json",
        "x\n.json",
    ],
)
def test_a_name_that_leads_out_is_refused(hub: HubServer, models: Path, name: str) -> None:
    listed = [*hub.siblings(REPOSITORY), {"rfilename": name, "size": 2, "blobId": "0" * 40}]
    hub.faults = Faults(listing=listed)
    failed(pull(hub, models), "changed")
    assert hub.sent.body_bytes == 0
    assert not (models.parent / "out.json").exists()


def test_a_link_in_the_partial_folder_is_not_followed(hub: HubServer, models: Path) -> None:
    hub.faults.bytes_per_s = 2.0 * MB
    pull(hub, models, kill_when=lambda one: one.phase == "fetching")
    victim = models.parent / "victim"
    size = len(hub.repositories[REPOSITORY]["tokenizer.json"])
    victim.write_bytes(b"x" * size)
    (folder,) = (models / ".pulling").glob("*@*")
    grown = folder / "files" / "tokenizer.json"
    grown.unlink()
    grown.symlink_to(victim)
    hub.faults.bytes_per_s = 0.0
    assert pull(hub, models)[-1].phase == "done"
    assert victim.read_bytes() == b"x" * size
    assert_whole(hub, models)


def test_a_model_that_is_no_model_is_refused_with_the_way_out(hub: HubServer, models: Path) -> None:
    hub.repositories[REPOSITORY] = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    assert "not safetensors" in failed(pull(hub, models), "unfit").message
    hub.repositories[REPOSITORY] = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    assert "safetensors" in failed(pull(hub, models), "unfit").message


def test_something_in_the_way_is_left(hub: HubServer, models: Path) -> None:
    there = models / REPOSITORY
    there.mkdir(parents=True)
    (there / "mine.txt").write_text("mine")
    assert "already exists" in failed(pull(hub, models), "conflict").message
    assert files_of(there) == {"mine.txt": b"mine"}


def test_a_model_of_that_commit_is_here_already(hub: HubServer, models: Path) -> None:
    pull(hub, models)
    hub.forget()
    here = str(models / REPOSITORY)
    last = pull(hub, models, here=here, revision="main")[-1]
    assert (last.phase, last.note) == ("done", HERE_ALREADY)
    assert hub.sent.body_bytes == 0
    hub.commit = "9" * 40
    assert "shoal rm" in failed(pull(hub, models, here=here, revision="main"), "conflict").message


def test_offline_asks_nobody(hub: HubServer, models: Path) -> None:
    failed(pull(hub, models, env={"HF_HUB_OFFLINE": "1"}), "offline")
    assert hub.sent.lists == 0


def test_a_partial_model_that_was_spoilt_on_the_disk_is_mended(
    hub: HubServer, models: Path
) -> None:
    hub.faults.bytes_per_s = 2.0 * MB
    pull(hub, models, kill_when=lambda one: one.done_bytes > 0.6 * one.total_bytes > 0)
    hub.faults.bytes_per_s = 0.0
    (folder,) = (models / ".pulling").glob("*@*")
    for grown in (folder / "files").rglob("*.safetensors"):
        with open(grown, "r+b") as file:
            file.write(b"spoilt")
    # this one had been found right: small files come first
    (folder / "files" / "config.json").write_bytes(b'{"model_type": "spoil"}')
    assert pull(hub, models)[-1].phase == "done"
    assert_whole(hub, models)
