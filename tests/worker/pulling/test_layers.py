"""A pull of some layers, by the process that pulls, against a hub on loopback: what comes, what is
on the disk and what it counts as, after a kill, damage and more layers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.wire.messages.weights import PIECE_BYTES
from tests.harness.hub import Faults, HubServer, files_of
from tests.harness.pulling import REPOSITORY, pull
from tests.worker.models.test_layer_bytes import COUNT, safetensors, tensors_of
from tests.worker.models.test_weights import CONFIG
from worker.models.files import ORIGIN_FILE, origin_of
from worker.models.layer_bytes import Layers, tensor_ranges, wanted_pieces
from worker.models.local_models import LocalModels, parts_held, pulled_parts
from worker.models.local_models import files_of as files_in
from worker.models.manifest import piece_length
from worker.models.weights import Shelf, Weights
from worker.pulling.fetching.partial import delete_partial, sweep_partial

pytestmark = pytest.mark.slow
MB = 1 << 20
THIRDS = ((0, 3), (3, 6), (6, COUNT))


def repository(*, tied: bool = False) -> dict[str, bytes]:
    """A model of `COUNT` layers in three files, and a tokenizer."""
    tensors = list(tensors_of(tied=tied).items())
    files = {
        f"model-{n}.safetensors": safetensors(dict(tensors[n * 4 : n * 4 + 4]), seed=n)
        for n in range(3)
    }
    config = {**CONFIG, "num_hidden_layers": COUNT, "model_type": "llama"}
    return {"config.json": json.dumps(config).encode(), "tokenizer.json": b"{}" * 1000, **files}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    server = HubServer({REPOSITORY: repository()})
    yield server
    server.close()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def weights(hub: HubServer) -> dict[str, bytes]:
    every = hub.repositories[REPOSITORY]
    return {path: content for path, content in every.items() if path.endswith(".safetensors")}


def masks(hub: HubServer, *span: int) -> dict[str, bytes]:
    heads = {path: content[:PIECE_BYTES] for path, content in weights(hub).items()}
    sizes = {path: len(content) for path, content in weights(hub).items()}
    return wanted_pieces(heads, sizes, Layers(span[0], span[1], COUNT))


def needed_bytes(hub: HubServer, *span: int) -> int:
    """The bytes of the small files, and of the pieces that these layers need."""
    every = hub.repositories[REPOSITORY]
    small = sum(len(every[path]) for path in every.keys() - weights(hub).keys())
    pieces = (
        piece_length(len(every[path]), index)
        for path, mask in masks(hub, *span).items()
        for index, mark in enumerate(mask)
        if mark
    )
    return small + sum(pieces)


def local(models: Path) -> LocalModels:
    found = LocalModels(Weights(Shelf({}, (models,), None, float32=False)), models)
    found.take(found.scan())
    return found


def tensors_here(hub: HubServer, models: Path) -> set[str]:
    """The tensors whose bytes on the disk are those of the hub."""
    (part,) = parts_held(models)
    folder = files_in(Path(part.path))
    found: set[str] = set()
    for path, content in weights(hub).items():
        here, table = (folder / path).read_bytes(), tensor_ranges(content)
        assert table is not None and len(here) == len(content)
        found |= {name for name, (a, b) in table.items() if here[a:b] == content[a:b]}
    return found


def test_layers_are_pulled_and_nothing_else_and_they_are_no_model(
    hub: HubServer, models: Path
) -> None:
    last = pull(hub, models, layers=(3, 6))[-1]
    assert (last.phase, last.layers, last.revision) == ("done", (3, 6), hub.commit), last
    assert hub.sent.body_bytes == last.received_bytes == needed_bytes(hub, 3, 6)
    print(f"{hub.sent.body_bytes:,} of {sum(map(len, hub.repositories[REPOSITORY].values())):,}")
    found = local(models)
    assert not found.cards and not (models / REPOSITORY).exists() and not found.passed_over
    (part,) = found.parts.values()
    assert (part.model, part.layers) == (REPOSITORY, ((3, 6),))
    assert part.card is not None and part.card.layers == COUNT and part.card.origin == "pulled"
    assert part.text == f"layers 3 to 5 of {COUNT}"
    assert part.have_bytes < part.size_bytes == sum(map(len, hub.repositories[REPOSITORY].values()))


@pytest.mark.parametrize("tied", [pytest.param(False, marks=pytest.mark.proof), True])
def test_three_parts_have_every_tensor_together(hub: HubServer, tmp_path: Path, tied: bool) -> None:
    hub.repositories[REPOSITORY] = repository(tied=tied)
    every, together = set(tensors_of(tied=tied)), set[str]()
    for number, (first, last) in enumerate(THIRDS):
        hub.forget()
        models = tmp_path / str(number) / "models"
        assert pull(hub, models, layers=(first, last))[-1].phase == "done"
        assert hub.sent.body_bytes == needed_bytes(hub, first, last)
        here = tensors_here(hub, models)
        assert {f"model.layers.{n}.mlp.weight" for n in range(first, last)} <= here
        embeds = "model.embed_tokens.weight" in here
        assert embeds or not (first == 0 or (tied and last == COUNT))
        together |= here
    assert together == every


def test_a_killed_pull_of_layers_resumes_with_what_is_missing(hub: HubServer, models: Path) -> None:
    hub.faults.bytes_per_s = 2.0 * MB
    states = pull(
        hub,
        models,
        layers=(0, 6),
        kill_when=lambda one: one.phase == "fetching" and one.done_bytes > 0.5 * one.total_bytes,
    )
    kept = states[-1].done_bytes
    assert not parts_held(models) and [one.reason for one in pulled_parts(models)]
    hub.faults.bytes_per_s = 0.0
    hub.forget()
    assert pull(hub, models, layers=(0, 6))[-1].phase == "done"
    config = len(hub.repositories[REPOSITORY]["config.json"])
    assert hub.sent.body_bytes <= needed_bytes(hub, 0, 6) - kept + config
    (part,) = parts_held(models)
    assert part.layers == ((0, 6),)


def test_more_layers_and_then_the_whole_continue_in_the_same_files(
    hub: HubServer, models: Path
) -> None:
    assert pull(hub, models, layers=(0, 3))[-1].phase == "done"
    assert pull(hub, models, layers=(6, COUNT))[-1].phase == "done"
    (part,) = parts_held(models)
    assert part.layers == ((0, 3), (6, COUNT))
    assert part.holds(6, COUNT) and not part.holds(2, 4)
    assert pull(hub, models)[-1].phase == "done"
    total = sum(map(len, hub.repositories[REPOSITORY].values()))
    again = len(hub.repositories[REPOSITORY]["config.json"])
    assert hub.sent.body_bytes <= total + again
    found = files_of(models / REPOSITORY)
    assert found.pop(ORIGIN_FILE) and found == hub.repositories[REPOSITORY]
    assert origin_of(models / REPOSITORY).files.keys() == found.keys()
    assert not parts_held(models) and not any((models / ".pulling").iterdir())


@pytest.mark.parametrize("which", [pytest.param("header", marks=pytest.mark.proof), "tensor"])
def test_a_piece_that_the_disk_changed_is_fetched_again(
    hub: HubServer, models: Path, which: str
) -> None:
    assert pull(hub, models, layers=(3, 6))[-1].phase == "done"
    (part,) = parts_held(models)
    path, mask = next((p, m) for p, m in masks(hub, 3, 6).items() if 0 in m and any(m[1:]))
    index = 0 if which == "header" else mask.index(1, 1)
    with open(files_in(Path(part.path)) / path, "r+b") as file:
        file.seek(index * PIECE_BYTES)
        file.write(b"damaged")
    hub.forget()
    assert pull(hub, models, layers=(3, 6))[-1].phase == "done"
    config = len(hub.repositories[REPOSITORY]["config.json"])
    assert 0 < hub.sent.body_bytes <= PIECE_BYTES + config
    assert {f"model.layers.{n}.mlp.weight" for n in range(3, 6)} <= tensors_here(hub, models)


@pytest.mark.proof
def test_a_whole_file_with_a_wrong_hash_is_refused(hub: HubServer, models: Path) -> None:
    hub.faults = Faults(flip="tokenizer.json", flip_times=1 << 30)
    last = pull(hub, models, layers=(0, 3))[-1]
    assert (last.phase, last.reason) == ("failed", "spoilt")
    assert not parts_held(models)


@pytest.mark.proof
def test_a_hub_without_ranges_serves_layers(hub: HubServer, models: Path) -> None:
    hub.faults = Faults(no_ranges=True)
    assert pull(hub, models, layers=(0, 3))[-1].phase == "done"
    assert {f"model.layers.{n}.mlp.weight" for n in range(3)} <= tensors_here(hub, models)


@pytest.mark.proof
def test_a_hub_that_is_busy_at_first_serves_layers(hub: HubServer, models: Path) -> None:
    hub.faults = Faults(file_status=503, file_times=2)
    assert pull(hub, models, layers=(0, 3))[-1].phase == "done"


@pytest.mark.parametrize(
    ("changes", "layers", "words"),
    [
        ({}, (6, COUNT + 1), f"has {COUNT} layers; layers 6 to {COUNT} do not exist"),
        ({"model_type": "gpt2"}, (0, 3), "the family gpt2"),
        pytest.param(
            {"num_hidden_layers": None},
            (0, 3),
            "the layers of someone/tiny are unknown",
            marks=pytest.mark.proof,
        ),
    ],
)
def test_layers_that_cannot_be_pulled_are_refused_before_weights_come(
    hub: HubServer, models: Path, changes: dict[str, object], layers: tuple[int, int], words: str
) -> None:
    files = hub.repositories[REPOSITORY]
    config = {**json.loads(files["config.json"]), **changes}
    files["config.json"] = json.dumps(config).encode()
    last = pull(hub, models, layers=layers)[-1]
    assert (last.phase, last.reason) == ("failed", "unfit") and words in last.message, last
    assert set(hub.sent.of) == {"config.json"}


def test_complete_layers_are_neither_swept_nor_cancelled(hub: HubServer, models: Path) -> None:
    assert pull(hub, models, layers=(0, 3))[-1].phase == "done"
    sweep_partial(models, 1e12)
    assert delete_partial(models, REPOSITORY) == 0
    assert len(parts_held(models)) == 1


@pytest.mark.proof
def test_layers_of_a_model_whose_files_went_do_not_count(hub: HubServer, models: Path) -> None:
    assert pull(hub, models, layers=(0, 3))[-1].phase == "done"
    (part,) = parts_held(models)
    (files_in(Path(part.path)) / "model-2.safetensors").unlink()
    assert pull(hub, models, layers=(3, 4))[-1].phase == "done"
    (part,) = parts_held(models)
    assert part.layers == ((3, 4),)
