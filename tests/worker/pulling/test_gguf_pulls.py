"""Pulls of GGUF files from a hub of ours: the right file, its parts, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.wire.ids import ModelId
from bus.wire.messages.readings import PullState
from tests.harness.gguf_files import F16, SMALL, gguf, parts, small
from tests.harness.hub import Faults, HubServer, files_of
from tests.harness.pulling import pull, tiny
from worker.models.weights import Shelf, Weights
from worker.pulling.fetching.partial import pulled_revision
from worker.verifying.checks import verify

pytestmark = pytest.mark.slow
REPOSITORY = "someone/small-gguf"
LARGE = {"token_embd.weight": (F16, (1 << 20, 3), bytes(6 << 20)), **{
    f"blk.{n}.ffn.weight": (F16, (1 << 20,), bytes([n]) * (2 << 20)) for n in range(2)
}}  # fmt: skip


def repository() -> dict[str, bytes]:
    return {
        "config.json": b'{"model_type": "llama"}',
        "README.md": b"# read me",
        "tokenizer_config.json": b"{}",
        "small-Q4_K_M.gguf": small(),
        "small-Q8_0.gguf": small(general__file_type=7, general__name="larger name"),
        "mmproj-F16.gguf": small(general__architecture="clip"),
        **{f"BF16/{n}": data for n, data in parts(SMALL, LARGE, 3, "small-BF16").items()},
    }


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    server = HubServer({REPOSITORY: repository(), "someone/mixed": {**tiny(), **repository()}})
    yield server
    server.close()


@pytest.fixture(autouse=True)
def well(hub: HubServer) -> None:
    hub.faults = Faults()
    hub.forget()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def pulled(hub: HubServer, models: Path, model: str, memory_bytes: int = 0) -> PullState:
    last = pull(hub, models, model=ModelId(model), memory_bytes=memory_bytes)[-1]
    assert last.phase == "done", last.message
    return last


def there(models: Path, model: str) -> dict[str, bytes]:
    return {n: data for n, data in files_of(models / model).items() if not n.startswith(".")}


def expected(*paths: str) -> dict[str, bytes]:
    files = repository()
    return {path.rpartition("/")[2]: files[path] for path in ("config.json", *paths)}


def test_a_named_quantisation_comes_alone_and_without_a_name_the_memory_chooses(
    hub: HubServer, models: Path
) -> None:
    model = f"{REPOSITORY}:Q4_K_M"
    last = pulled(hub, models, model)
    assert there(models, model) == expected("small-Q4_K_M.gguf")
    assert last.choice == "Q4_K_M (0.0 MB), as named" and last.files == 2
    assert last.total_bytes == sum(map(len, expected("small-Q4_K_M.gguf").values()))
    last = pulled(hub, models, REPOSITORY, memory_bytes=64_000_000_000)
    assert "Q8_0 (0.0 MB): the largest of at most 8 bits" in last.choice
    assert there(models, REPOSITORY) == expected("small-Q8_0.gguf")
    looked = Weights(Shelf({}, (models,), None, float32=True)).look()
    assert {card.model: card.quantization for card in looked} == {
        REPOSITORY: "Q8_0", model: "Q4_K_M",
    }  # fmt: skip
    assert looked[1].origin == "pulled" and pulled_revision(models / model) == hub.commit


def test_a_repository_with_both_formats_gives_gguf_where_it_is_named(
    hub: HubServer, models: Path
) -> None:
    model = "someone/mixed:Q4_K_M"
    pulled(hub, models, model)
    assert there(models, model).keys() == {"small-Q4_K_M.gguf", "config.json", "tokenizer.json"}


def test_a_killed_pull_of_parts_goes_on_and_its_hashes_are_checked(
    hub: HubServer, models: Path
) -> None:
    model = ModelId(f"{REPOSITORY}:BF16")
    hub.faults = Faults(bytes_per_s=8e6)
    pull(hub, models, model=model, kill_when=lambda state: state.done_bytes >= 3 << 20)
    assert not (models / model).exists()
    before, hub.faults = hub.sent.body_bytes, Faults(flip="BF16/small-BF16-00003-of-00003.gguf")
    pulled(hub, models, model)
    paths = [path for path in repository() if path.startswith("BF16/")]
    assert there(models, model) == expected(*paths)
    whole = sum(len(repository()[path]) for path in paths)
    third = len(repository()["BF16/small-BF16-00003-of-00003.gguf"])
    assert before >= 3 << 20 and hub.sent.body_bytes < whole + third + (5 << 20)
    verdict = verify(models / model, lambda _: None, lambda: False)
    assert (verdict.against, verdict.files, verdict.wrong) == ("hashes", 4, ())
    (models / model / "small-BF16-00002-of-00003.gguf").write_bytes(b"GGUF")
    (wrong,) = verify(models / model, lambda _: None, lambda: False).wrong
    assert wrong.path == "small-BF16-00002-of-00003.gguf" and "the hash is" in wrong.what
    assert not Weights(Shelf({}, (models,), None, float32=True)).look()


def test_an_unknown_quantisation_lists_those_that_there_are(hub: HubServer, models: Path) -> None:
    last = pull(hub, models, model=ModelId(f"{REPOSITORY}:Q5_K_M"))[-1]
    assert (last.phase, last.reason) == ("failed", "not_found")
    assert "it has Q4_K_M (0.0 MB), Q8_0 (0.0 MB), BF16 (10.5 MB)" in last.message
    assert not hub.sent.body_bytes


def held(hub: HubServer, models: Path, model: str) -> PullState:
    def waits(state: PullState) -> bool:
        return state.forecast is not None or state.phase == "failed"

    return pull(hub, models, kill_when=waits, model=ModelId(model), holds=True)[-1]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_held_pull_tells_the_bill_from_the_headers(
    hub: HubServer, models: Path, ranges: bool
) -> None:
    hub.faults = Faults(no_ranges=not ranges)
    state = held(hub, models, f"{REPOSITORY}:BF16")
    assert state.forecast is not None and state.forecast.card is not None, state
    card = state.forecast.card
    assert (card.dtype, card.layers, card.quantization) == ("gguf", 2, "Q4_K_M")
    assert card.weights_bytes == 10 << 20 and card.size_bytes > 10 << 20
    assert state.forecast.lacking_bytes == state.total_bytes == card.size_bytes + 23
    assert "BF16 (10.5 MB), as named" in state.choice


def test_what_the_header_refuses_is_refused_before_the_weights(
    hub: HubServer, models: Path
) -> None:
    state = held(hub, models, f"{REPOSITORY}:mmproj-F16.gguf")
    assert (state.phase, state.reason) == ("failed", "unfit")
    assert "mmproj-F16.gguf: the file is a vision or audio projector" in state.message


def test_a_lying_header_fails_the_forecast_in_words(hub: HubServer, models: Path) -> None:
    files = {"m-Q4_0.gguf": gguf(SMALL, {"w": (99, (4,), b"")})}
    hub.repositories["someone/lies"] = files
    state = held(hub, models, "someone/lies")
    assert (
        state.reason == "unfit" and "m-Q4_0.gguf: the tensor 'w' has the type 99" in state.message
    )
