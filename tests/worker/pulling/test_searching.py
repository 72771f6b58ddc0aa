"""What of a hub's list runs here, and the process that searches, against a hub on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bus.wire.messages.gateways import AskSearch, SearchFound, SearchRefused
from tests.harness.hub import Faults, HubServer
from tests.harness.pulling import answer_of_search, environment
from worker.pulling.searching import HubModel, found_models


def known(config: Mapping[str, Any]) -> bool:
    """Whether a family is one of ours, or not said."""
    return config.get("model_type") in (None, "qwen3")


def listed(name: str, *tags: str, **more: Any) -> HubModel:
    fields: dict[str, Any] = {
        "library": "", "task": "text-generation", "config": {}, "counts": {}, "downloads": 0,
        "likes": 0, "gated": False, "changed_at": "",
    }  # fmt: skip
    return HubModel(name=name, tags=frozenset(tags), **{**fields, **more})


def test_those_for_mlx_come_first_then_by_downloads() -> None:
    found, left_out = found_models(
        [
            listed("a/plain", "safetensors", downloads=900),
            listed("m/few", "mlx", downloads=1),
            listed("m/many", library="MLX", downloads=50),
            listed("m/many", "mlx", downloads=60),
        ],
        known,
        10,
    )
    assert [one.model for one in found] == ["m/many", "m/few", "a/plain"]
    assert [one.for_mlx for one in found] == [True, True, False] and left_out == 0
    assert len(found_models([listed("a/1", "mlx"), listed("a/2", "mlx")], known, 1)[0]) == 1


@pytest.mark.parametrize(
    "one",
    [
        listed("a/gguf", "gguf", files=("mmproj-F16.gguf", "README.md")),
        listed("a/bert", "gguf", files=("m-F16.gguf",), gguf={"architecture": "bert"}),
        listed("a/speech", "safetensors", task="automatic-speech-recognition"),
        listed("a/strange", "mlx", config={"model_type": "hyena"}),
        listed("no-owner name", "mlx"),
    ],
    ids=lambda one: one.name,
)
def test_what_does_not_run_here_is_left_out_and_counted(one: HubModel) -> None:
    assert found_models([one], known, 10) == ((), 1)


@pytest.mark.parametrize(
    ("one", "quantization", "size_bytes", "parameters"),
    [
        (listed("a/m-4bit", "mlx", counts={"U32": 100, "BF16": 10}), "4-bit", 420, 800),
        (listed("a/m", "mlx", config={"quantization_config": {"bits": 8}}), "8-bit", 0, 0),
        (listed("a/m", "mlx", "6-bit"), "6-bit", 0, 0),
        (listed("a/m-AWQ", "mlx", config={"quantization_config": {"bits": 4, "quant_method":
                "awq"}}), "4-bit awq", 0, 0),
        (listed("a/m-FP8", "safetensors", counts={"F8_E4M3": 10}), "fp8", 10, 10),
        (listed("a/m", "safetensors", counts={"BF16": 10, "F32": 1}), "bf16", 24, 11),
        (listed("a/m", "mlx", counts={"U32": 3}), "u32", 12, 0),
        (listed("a/m-14b", "mlx"), "", 0, 0),
    ],
)  # fmt: skip
def test_what_the_list_tells_of_its_bits_and_bytes(
    one: HubModel, quantization: str, size_bytes: int, parameters: int
) -> None:
    ((told,), _) = found_models([one], known, 10)
    assert (told.quantization, told.size_bytes, told.parameters) == (
        quantization, size_bytes, parameters,
    )  # fmt: skip


def test_quantisations_of_gguf_files_are_listed() -> None:
    files = ("m-Q8_0.gguf", "m-q4_k_m.gguf", "mmproj-F16.gguf", "b/m-BF16-00001-of-00001.gguf")
    facts = {"architecture": "llama", "total": 600}
    model = listed("o/m-GGUF", "gguf", files=files, gguf=facts)
    ((found,), _) = found_models([model], known, 10)
    assert set(found.quantizations) == {"Q8_0", "Q4_K_M", "BF16"}
    assert (found.family, found.parameters, found.for_mlx) == ("llama", 600, False)


def test_encoders_and_models_of_features_make_vectors() -> None:
    bert = listed("a/bert", "safetensors", task="sentence-similarity",
                  config={"model_type": "bert"})  # fmt: skip
    decoder = listed("a/embeds", "mlx", task="feature-extraction", config={"model_type": "qwen3"})
    decodes = listed("a/text", "mlx", config={"model_type": "qwen3"})
    makes = {one.model: one.makes for one in found_models([bert, decoder, decodes], known, 9)[0]}
    assert makes == {"a/bert": "embedding", "a/embeds": "embedding", "a/text": "text"}


# --- the process ---


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    server = HubServer({"someone/tiny": {}})
    server.listed = {
        "mlx-community/Qwen3-0.6B-4bit": {
            "tags": ["mlx", "safetensors", "4-bit"], "library_name": "mlx", "downloads": 70,
            "pipeline_tag": "text-generation", "config": {"model_type": "qwen3"}, "likes": 2,
            "safetensors": {"parameters": {"U32": 80_000, "BF16": 4_000}, "total": 84_000},
            "lastModified": "2025-05-01T10:00:00.000Z", "gated": "manual",
        },
        "org/Qwen3-0.6B": {"tags": ["safetensors"], "downloads": 7_000},
        "org/Qwen3-0.6B-GGUF": {
            "tags": ["gguf"], "downloads": 9_000, "gguf": {"architecture": "qwen3", "total": 600},
            "siblings": [{"rfilename": "m-Q8_0.gguf"}, {"rfilename": "README.md"}],
        },
        "org/Qwen3-sound": {"tags": ["safetensors"], "pipeline_tag": "text-to-speech"},
    }  # fmt: skip
    yield server
    server.close()


@pytest.fixture(autouse=True)
def well(hub: HubServer) -> None:
    hub.faults = Faults()


def searched(
    hub: HubServer, tmp_path: Path, asked: AskSearch, **env: str
) -> SearchFound | SearchRefused:
    """What the process answers, in an environment of ours."""
    question = asked.model_dump_json().encode() + b"\n"
    return read(answer_of_search(question, environment(hub, tmp_path / "hf", **env)))


def read(answer: bytes) -> SearchFound | SearchRefused:
    kind = SearchFound if json.loads(answer)["kind"] == "search_found" else SearchRefused
    return kind.model_validate_json(answer)


@pytest.mark.slow
def test_a_hub_is_searched_for_what_runs_here(hub: HubServer, tmp_path: Path) -> None:
    found = searched(hub, tmp_path, AskSearch(words="qwen3"))
    assert isinstance(found, SearchFound), found
    assert (found.hub, found.left_out) == (hub.url, 1)
    first, in_gguf, second = found.models
    assert (first.model, second.model) == ("mlx-community/Qwen3-0.6B-4bit", "org/Qwen3-0.6B")
    assert (in_gguf.quantizations, in_gguf.parameters) == (("Q8_0",), 600)
    assert (first.for_mlx, first.gated, first.quantization) == (True, True, "4-bit")
    assert (first.size_bytes, first.changed_at) == (328_000, "2025-05-01")
    owned = searched(hub, tmp_path, AskSearch(words="qwen3", author="org"))
    assert isinstance(owned, SearchFound)
    assert [one.model for one in owned.models] == ["org/Qwen3-0.6B-GGUF", "org/Qwen3-0.6B"]
    nothing = searched(hub, tmp_path, AskSearch(words="no such model"))
    assert isinstance(nothing, SearchFound) and not nothing.models


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "env", "reason", "words"),
    [
        (Faults(search_status=429, retry_after="120"), {}, "rate_limited", "for 120 s"),
        (Faults(search_status=503), {}, "unreachable", "status 503"),
        (Faults(search_status=403), {}, "unauthorized", "hf auth login"),
        (Faults(search_status=404), {}, "unreachable", "cannot be searched"),
        (Faults(needs_token="t"), {"HF_TOKEN": "wrong"}, "unauthorized", "this node's token"),
        (Faults(needs_token="t"), {}, "unauthorized", "requires a token"),
        (Faults(endless=True), {}, "changed", "MiB"),
        (Faults(), {"HF_HUB_OFFLINE": "1"}, "offline", "HF_HUB_OFFLINE"),
        (Faults(), {"HF_ENDPOINT": "http://127.0.0.1:9"}, "unreachable", "127.0.0.1:9"),
    ],
    ids=["429", "503", "403", "404", "401", "no token", "endless", "offline", "no network"],
)
def test_what_a_hub_refuses_is_said_at_once_in_words(
    hub: HubServer, tmp_path: Path, faults: Faults, env: dict[str, str], reason: str, words: str
) -> None:
    hub.faults = faults
    hub.forget()
    refused = searched(hub, tmp_path, AskSearch(words="qwen3"), **env)
    assert isinstance(refused, SearchRefused), refused
    assert refused.reason == reason and words in refused.message, refused
    assert refused.retry_after_s == (120.0 if reason == "rate_limited" else None)
    assert hub.sent.searches <= 1, "it is not asked again and again"


@pytest.mark.slow
def test_a_token_that_the_hub_takes_finds_what_is_there(hub: HubServer, tmp_path: Path) -> None:
    hub.faults = Faults(needs_token="right")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "worker.pulling.searching"],
        input=AskSearch(words="qwen3").model_dump_json().encode() + b"\n",
        capture_output=True,
        cwd=tempfile.gettempdir(),
        env=environment(hub, tmp_path / "hf", HF_TOKEN="right"),
        timeout=120,
        check=False,
    )
    found = read(done.stdout)
    assert isinstance(found, SearchFound) and len(found.models) == 3
