from __future__ import annotations

import builtins
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from bus.wire.ids import ModelId
from worker.models.files import INDEX, ORIGIN_FILE, Origin, Tensor, installed_families, note_origin
from worker.models.layers import layer_kv
from worker.models.weights import MOST_LYING, Shelf, Weights, hugging_face_cache

CONFIG: dict[str, Any] = {
    "model_type": "qwen3", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 256,
    "max_position_embeddings": 2048,
}  # fmt: skip
TENSORS: dict[str, tuple[str, list[int]]] = {
    "model.embed_tokens.weight": ("BF16", [256, 64]),
    "model.norm.weight": ("BF16", [64]),
}
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "U32": 4}


def write_model(
    folder: Path,
    config: dict[str, Any] | None = None,
    tensors: dict[str, tuple[str, list[int]]] | None = None,
    template: str | None = None,
) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config or CONFIG))
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    at = 0
    for name, (dtype, shape) in (tensors or TENSORS).items():
        size = SIZES[dtype]
        for side in shape:
            size *= side
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + b"\0" * at)
    (folder / "tokenizer.json").write_text("{}")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def shelf(tmp_path: Path, *, float32: bool = True, bundled: Path | None = None) -> Weights:
    models = tmp_path / "models"
    named = {} if bundled is None else {"shoal-tiny": bundled}
    return Weights(Shelf(named, (models,), tmp_path / "hub", float32))


def test_a_card_holds_exact_bytes_as_they_will_lie_in_memory(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "tiny")
    (card,) = shelf(tmp_path).look()
    count = 256 * 64 + 64
    assert card.model == "tiny" and card.parameters == count
    assert card.weights_bytes == count * 4, "cast to float32"
    assert card.size_bytes == (tmp_path / "models/tiny/model.safetensors").stat().st_size
    assert card.kv_bytes_per_token == 4 * 2 * 4 * 16 * 4
    assert (card.dtype, card.context_tokens, card.vocabulary) == ("float32", 2048, 256)
    (stored,) = shelf(tmp_path, float32=False).look()
    assert (stored.weights_bytes, stored.kv_bytes_per_token) == (count * 2, 4 * 2 * 4 * 16 * 2)
    assert stored.dtype == "auto"


def test_quantized_weights_stay_packed_and_count_as_what_they_stand_for(tmp_path: Path) -> None:
    config = {**CONFIG, "quantization": {"bits": 4, "group_size": 64}}
    tensors = {
        "a.weight": ("U32", [64, 8]),
        "a.scales": ("F16", [64, 1]),
        "a.biases": ("F16", [64, 1]),
        "norm.weight": ("F16", [64]),
    }
    write_model(tmp_path / "models" / "q4", config, tensors)
    (card,) = shelf(tmp_path).look()
    assert card.quantization == "4-bit"
    assert card.parameters == 64 * 64 + 64
    assert card.weights_bytes == 64 * 8 * 4 + (64 + 64 + 64) * 4


def test_a_digest_is_sha256s_and_of_this_very_model(tmp_path: Path) -> None:
    """`ollama list` cuts the first twelve of its letters."""
    write_model(tmp_path / "models" / "one")
    write_model(tmp_path / "models" / "two", {**CONFIG, "max_position_embeddings": 64})
    write_model(tmp_path / "models" / "three", tensors={"a.weight": ("F16", [64])})
    digests = {card.digest for card in shelf(tmp_path).look()}
    assert len(digests) == 3
    assert all(len(one) == 64 and int(one, 16) >= 0 for one in digests)


def test_names_come_from_folders_and_the_first_of_a_name_wins(tmp_path: Path) -> None:
    bundled = write_model(tmp_path / "bundle")
    write_model(tmp_path / "models" / "shoal-tiny")
    write_model(tmp_path / "models" / "owner" / "deep")
    write_model(tmp_path / "models" / "not a näme")
    write_model(tmp_path / "models" / "two words")
    write_model(tmp_path / "models" / "two-words")
    (tmp_path / "models" / "empty").mkdir()
    found = {card.model: card for card in shelf(tmp_path, bundled=bundled).look()}
    (hashed,) = (name for name in found if name.startswith("two-words-"))
    named = {"shoal-tiny", "owner/deep", "not-a-name", "two-words", hashed}
    assert set(found) == named
    assert found[ModelId("not-a-name")].folder_name == "not a näme"
    assert found[ModelId("two-words")].folder_name == ""
    assert found[ModelId("shoal-tiny")].bundled and found[ModelId("shoal-tiny")].path == str(
        bundled
    )


def test_the_hugging_face_cache_is_read_by_the_ref_then_by_age(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--mlx-community--Small-4bit"
    old = write_model(repository / "snapshots" / "aaa")
    new = write_model(repository / "snapshots" / "bbb")
    os.utime(old, (1, 1))
    (card,) = shelf(tmp_path).look()
    assert (card.model, card.path) == ("mlx-community/Small-4bit", str(new))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("aaa")
    (card,) = shelf(tmp_path).look()
    assert card.path == str(old)


def test_the_hugging_face_variables_are_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", "/data/hf")
    assert hugging_face_cache() == Path("/data/hf/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/data/hub")
    assert hugging_face_cache() == Path("/data/hub")


@pytest.mark.parametrize(
    ("template", "capabilities", "thinks"),
    [
        ("{{ messages }}", ("completion",), False),
        ("{% if tools %}{{ tools }}{% endif %}", ("completion", "tools"), False),
        ("{{ reasoning_effort }}", ("completion", "thinking"), True),
        ("{{ tools }}{{ enable_thinking }}", ("completion", "tools", "thinking"), True),
    ],
)
def test_the_template_tells_what_a_model_can_do(
    tmp_path: Path, template: str, capabilities: tuple[str, ...], thinks: bool
) -> None:
    write_model(tmp_path / "models" / "m", template=template)
    (card,) = shelf(tmp_path).look()
    assert (card.capabilities, card.thinking) == (capabilities, thinks)


def test_a_card_file_may_say_more_and_is_seen_when_it_changes(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models" / "m", template="{{ enable_thinking }}")
    weights = shelf(tmp_path)
    (before,) = weights.look()
    (folder / "card.toml").write_text(
        'summary = "for people"\nthinking_default = false\ncontext_tokens = 512\nkeep_alive_s = 9\n'
    )
    (after,) = weights.look()
    assert (before.thinking, before.context_tokens, before.keep_alive_s) == (True, 2048, None)
    assert (after.thinking, after.context_tokens, after.keep_alive_s) == (False, 512, 9.0)


def reasons(weights: Weights) -> dict[str, str]:
    weights.look()
    return {one.name: f"{one.why}; {one.remedy}" for one in weights.passed_over}


def test_unreadable_models_are_named_with_their_trouble_and_harm_no_other(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "good")
    bad = write_model(tmp_path / "models" / "bad")
    (bad / "model.safetensors").write_bytes(b"\xff" * 16)
    cut = write_model(tmp_path / "models" / "cut")
    raw = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(raw[:40])
    write_model(tmp_path / "models" / "odd", {"model_type": "x"})
    weights = shelf(tmp_path)
    assert [card.model for card in weights.look()] == ["good"]
    said = reasons(weights)
    assert set(said) == {"bad", "cut", "odd"}
    assert "not a safetensors file" in said["bad"] and "is truncated" in said["cut"]
    assert "has no num_hidden_layers" in said["odd"]


def test_a_configuration_beyond_reason_costs_nothing(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "m", {**CONFIG, "num_hidden_layers": 10**9})
    assert "num_hidden_layers is 1000000000" in reasons(shelf(tmp_path))["m"]


def test_weights_cut_short_behind_their_header_are_no_model(tmp_path: Path) -> None:
    file = write_model(tmp_path / "models" / "m") / "model.safetensors"
    size = file.stat().st_size
    os.truncate(file, size - 1)
    assert f"is truncated: {size - 1:,} of at least {size:,}" in reasons(shelf(tmp_path))["m"]


def test_what_has_not_changed_is_not_read_again_whether_good_or_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "models" / "good")
    bad = write_model(tmp_path / "models" / "bad")
    (bad / "config.json").write_text("{")
    opened: list[str] = []
    weights = shelf(tmp_path)
    stage = write_model(tmp_path / "stage")
    weights.look()
    weights.card(ModelId("part"), stage)
    real, opens = Path.read_text, builtins.open
    monkeypatch.setattr(Path, "read_text", lambda p, *a, **k: opened.append(p.name) or real(p))
    monkeypatch.setattr(
        builtins, "open", lambda p, *a, **k: opened.append(Path(p).name) or opens(p, *a, **k)
    )
    for _ in range(2):
        weights.look()
        weights.card(ModelId("part"), stage)
    assert not opened
    (bad / "config.json").write_text(json.dumps(CONFIG))
    assert [card.model for card in weights.look()] == ["bad", "good"]
    assert set(opened) >= {"config.json"} and not weights.passed_over


def test_a_model_with_an_adapter_beside_its_weights_is_refused_with_the_way_out(
    tmp_path: Path,
) -> None:
    folder = write_model(tmp_path / "models" / "m")
    weights = shelf(tmp_path)
    assert weights.look()
    other = write_model(tmp_path / "other")
    (other / "model.safetensors").rename(folder / "adapters.safetensors")
    assert not weights.look()
    (said,) = weights.passed_over
    assert not said.taken and "adapters.safetensors" in said.why
    assert "adapters/NAME" in said.remedy


def test_a_card_file_is_taken_whole_or_refused_whole(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models" / "m")
    card = folder / "card.toml"
    weights = shelf(tmp_path)
    for text, said in (
        ("context_token = 5\ntemperature = 0.5", "'context_token'; did you mean context_tokens"),
        ("num_ctx = 5", "did you mean context_tokens"),
        ("pinned = true", "did you mean pin?"),
        ("draft_model = 'a b'", "draft_model: 'a b' cannot be the name"),
        ("context_tokens = true", "whole number"),
        ("temperature = 9", "temperature: "),
        ("temperature = 'hot'", "temperature must be a number"),
        ("aliases = ['a b']", "'a b' cannot be the name"),
        ("stop = ['']", "stop has at most"),
        ("system = '" + "x" * 20_000 + "'", "more than 16 KiB"),
        ("summary = 5", "summary must be a string"),
        ("not toml", "card.toml is invalid"),
    ):
        card.write_text(f"{text}\n" if text != "not toml" else "= =")
        (found,) = weights.look()
        assert found.defaults is None and found.noted == () and found.card_at_s == 0
        (told,) = weights.passed_over
        assert told.taken and told.reason == "bad_card", text
        assert said in f"{told.why}; {told.remedy}", told
    for text in (
        "aliases = ['short', 'no name', 'short', 5]\npriority = 1",
        "aliases = ['short', \"no name\"]\nsystem = 'no end",
    ):
        card.write_text(f"{text}\n")
        (found,) = weights.look()
        assert found.aliases == () and weights.passed_over[0].aliases == ("short",)
    card.write_text("context_tokens = 4096\n")
    assert "not raise" in reasons(weights)["m"]
    card.write_text("context_tokens = 1024\nkeep_alive_s = -1\nsummary = 'a model'\n")
    assert not reasons(weights)
    card.write_text("template = '{{ .Prompt }}'\n")  # of an earlier build
    (found,) = weights.look()
    assert found.defaults is not None and found.defaults.template == "{{ .Prompt }}"
    assert not reasons(weights)


def test_what_a_card_file_says_to_requests_is_a_derived_models_defaults(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models" / "m", template="{{ enable_thinking }}")
    (folder / "card.toml").write_text(
        "aliases = ['short', 'other']\nsystem = 'Be brief.'\nstop = 'END'\ntemperature = 0.25\n"
        "repetition_penalty = 1.5\nthinking_default = false\n"
    )
    write_model(tmp_path / "models" / "other")
    weights = shelf(tmp_path)
    card, other = weights.look()
    defaults = card.defaults
    assert defaults is not None and other.defaults is None
    assert (defaults.name, defaults.base) == ("m", "m")
    assert (defaults.system, defaults.stop, defaults.thinking) == ("Be brief.", ("END",), False)
    assert defaults.sampled == ("repetition_penalty", "temperature")
    assert defaults.parameters["repeat_penalty"] == 1.5
    assert card.aliases == ("short",), "the other is a model's own name"
    (said,) = weights.passed_over
    assert said.reason == "alias_taken" and "it is already used by other" in said.why
    assert card.card_at_s > 0 and "system" in card.noted


def test_the_cache_of_others_is_named_only_where_it_has_weights(tmp_path: Path) -> None:
    for name, file in (("a--gguf", "x.gguf"), ("a--words", "tokenizer.json")):
        snapshot = tmp_path / "hub" / f"models--{name}" / "snapshots" / "aaa"
        snapshot.mkdir(parents=True)
        (snapshot / file).write_text("x")
    assert set(reasons(shelf(tmp_path))) == {"a/gguf"}


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, (4 * 2 * 4 * 16 * 2, 0)),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, (4 * 576 * 2, 0)),
        (
            {"layer_types": ["full_attention"] + ["sliding_attention"] * 3, "sliding_window": 100},
            (2 * 4 * 16 * 2, 3 * 100 * 2 * 4 * 16 * 2),
        ),
        (
            {"full_attention_interval": 4, "state_size": 8},
            (2 * 4 * 16 * 2, 3 * 64 * 8 * 2),
        ),
        ({"head_dim": None, "num_key_value_heads": None}, (4 * 2 * 8 * 8 * 2, 0)),
    ],
)
def test_kv_bytes_count_only_what_grows(extra: dict[str, Any], expected: tuple[int, int]) -> None:
    caches = layer_kv({**CONFIG, **extra}, CONFIG["num_hidden_layers"], 2)
    assert (sum(grows for grows, _ in caches), sum(fixed for _, fixed in caches)) == expected


def test_integers_are_not_cast() -> None:
    tensors = [Tensor("w", "U32", 10, 0, 40), Tensor("s", "BF16", 10, 40, 60)]
    assert sum(tensor.loaded_bytes(float32=True) for tensor in tensors) == 80
    assert sum(tensor.loaded_bytes(float32=False) for tensor in tensors) == 60


def reason(weights: Weights) -> str:
    assert not weights.look()
    (said,) = weights.passed_over
    return said.reason


def test_a_folder_is_taken_once_its_weights_stay_as_they_are(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models" / "m")
    weights = Weights(Shelf({}, (tmp_path / "models",), None, True, still_s=30.0))
    assert reason(weights) == "still_written"
    os.utime(folder / "model.safetensors", (1, 1))
    (card,) = weights.look()
    (folder / "model.safetensors").touch()
    assert weights.look() == (card,) and not weights.passed_over, "a known model stays meanwhile"


def test_what_shoal_fetched_is_taken_at_once_and_says_where_from(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models" / "m")
    note_origin(folder, Origin("copied", ("n2",), files={"config.json": "ab"}))
    (card,) = Weights(Shelf({}, (tmp_path / "models",), None, True, still_s=30.0)).look()
    assert (card.origin, card.sources) == ("copied", ("n2",))
    (folder / ORIGIN_FILE).write_text('{"how": "stolen"}')
    (card,) = shelf(tmp_path).look()
    assert (card.origin, card.sources) == ("put", ())


def test_links_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models" / "m")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/nowhere/blob")
    weights = shelf(tmp_path)
    assert reason(weights) == "dead_link" and "/nowhere/blob" in weights.passed_over[0].why


def test_an_index_that_names_what_is_not_here_is_told(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models" / "m")
    held = dict.fromkeys(TENSORS, "gone.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": held}))
    assert [card.model for card in shelf(tmp_path).look()] == ["m"], "all is in another file"
    (folder / INDEX).write_text(json.dumps({"weight_map": {**held, "w": "other.safetensors"}}))
    weights = shelf(tmp_path)
    assert reason(weights) == "missing_shards" and "other.safetensors" in weights.passed_over[0].why


def test_families_are_those_of_the_mlx_lm_that_is_installed(tmp_path: Path) -> None:
    families = installed_families()
    assert families is not None and {"qwen3", "llama"} <= families.names
    assert families.unfit({"model_type": "mistral"}) is None, "it is loaded as another family"
    write_model(tmp_path / "models" / "m", {**CONFIG, "model_type": "brand_new"})
    weights = Weights(Shelf({}, (tmp_path / "models",), None, True, families))
    assert reason(weights) == "unknown_family"
    assert families.version in weights.passed_over[0].why


def test_a_folder_of_ten_thousand_bad_things_is_looked_at_within_bounds(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for number in range(10_000):
        (models / f"{number:05}.gguf").touch()
    weights = shelf(tmp_path)
    weights.look()
    assert len(weights.passed_over) == MOST_LYING + 1
    assert weights.passed_over[0].reason == "too_many"


@pytest.mark.parametrize(
    ("operator", "said", "found"),
    [
        (None, "", (False, "")),
        (None, "metal_fast_synch = true", (True, "card")),
        (False, "metal_fast_synch = true", (False, "node")),
        (True, "metal_fast_synch = false", (True, "node")),
    ],
)
def test_the_operator_goes_before_the_card_about_fast_synchronisation(
    tmp_path: Path, operator: bool | None, said: str, found: tuple[bool, str]
) -> None:
    folder = write_model(tmp_path / "models" / "m")
    (folder / "card.toml").write_text(said)
    weights = Weights(Shelf({}, (folder.parent,), None, True, metal_fast_synch=operator))
    (card,) = weights.look()
    assert (card.metal_fast_synch, card.metal_fast_synch_by) == found
