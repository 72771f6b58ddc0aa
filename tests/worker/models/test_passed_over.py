from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.models.passed_over import (
    printable,
    unfit_family,
    unfit_file,
    unfit_folder,
    weights_among,
)

SHARDS = [f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"a.gguf", "b.gguf"}, "2 GGUF files"),
        ({"m-00001-of-00002.gguf"}, "m-00002-of-00002.gguf is missing"),
        ({"m-00001-of-00002.gguf", "a.gguf"}, "2 GGUF files"),
        ({"a.ggml"}, "old format"),
        ({"adapter_config.json", "adapters.safetensors"}, "LoRA"),
        ({"adapter_config.json", "adapter_model.bin"}, "adapters/NAME"),
        ({"config.json", "model.safetensors.incomplete"}, "incomplete download"),
        ({"model.safetensors"}, "without a config.json"),
        ({"config.json", "pytorch_model.bin"}, "not safetensors"),
        ({"config.json", "consolidated.safetensors"}, "model*.safetensors"),
        ({"config.json", "tokenizer.json"}, "without weights"),
        ({"README.md"}, "neither"),
        (set[str](), "empty"),
        ({"config.json", *SHARDS[1:]}, "model-00001-of-00003.safetensors is missing"),
        ({"config.json", SHARDS[1]}, "and 1 more is missing"),
        ({"config.json", "model.safetensors", "tokenizer_config.json"}, "without a tokenizer"),
        ({"model_index.json"}, "an image model"),
    ],
)
def test_a_folder_that_is_no_model_says_why_and_the_way_out(names: set[str], said: str) -> None:
    unfit = unfit_folder(names)
    assert unfit is not None and unfit.remedy
    assert said in f"{unfit.why}; {unfit.remedy}"


def test_a_folder_with_all_of_a_models_files_is_fit() -> None:
    for words in (
        "tokenizer.json",
        "tokenizer.model",
        "vocab.txt",
        "qwen.tiktoken",
        "spiece.model",
    ):
        assert unfit_folder({"config.json", "model.safetensors", words}) is None
    more = {"tokenizer.json", "adapters.safetensors", "old.gguf"}
    assert unfit_folder({"config.json", *SHARDS, *more}) is None


def test_a_folder_with_one_gguf_file_or_all_its_parts_may_be_a_model() -> None:
    assert unfit_folder({"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"}) is None
    assert unfit_folder({"a.Q4_K_M.gguf", "README.md"}) is None
    assert weights_among({"config.json", "a.GGUF"}) == ["a.GGUF"]
    assert weights_among({"model.safetensors", "old.gguf"}) == ["model.safetensors"]
    assert unfit_folder({"a.gguf", "b.gguf"}) is not None


def test_a_file_by_itself_is_told_by_what_it_is() -> None:
    names = ("a.gguf", "a.zip", "model.safetensors", "a.bin", "a.safetensors.part", "README.md")
    reasons = [unfit_file(name).reason for name in names]
    assert reasons == ["gguf", "packed", "alone", "alone", "unfinished", "stray"]


@pytest.mark.parametrize(
    ("config", "reason", "said"),
    [
        ({"model_type": "whisper"}, "media", "whisper models read or make"),
        ({"model_type": "new_vl", "vision_config": {}}, "media", "images"),
        ({"model_type": "talker", "audio_config": {}}, "media", "sound"),
        ({"model_type": "brand_new"}, "unknown_family", "mlx-lm 9.9"),
    ],
)
def test_a_family_that_cannot_be_loaded_is_named_with_the_version(
    config: dict[str, object], reason: str, said: str
) -> None:
    unfit = unfit_family(config, "9.9")
    assert unfit.reason == reason and said in unfit.why and "9.9" in unfit.why


@given(st.text(alphabet=st.characters(), max_size=20))
def test_names_are_shown_without_what_harms_a_terminal_or_a_frame(name: str) -> None:
    shown = printable(name)
    assert len(shown) == len(name) and shown.isprintable()
    shown.encode()


def test_a_name_of_broken_bytes_can_be_sent() -> None:
    assert printable(b"a\xff\x1b[2J".decode(errors="surrogateescape")) == "a??[2J"


def test_a_long_text_is_shown_by_its_beginning_and_its_end() -> None:
    shown = printable("a" * 500 + "\n" + "b" * 500, 100)
    assert len(shown) <= 100 and shown.startswith("aaa") and shown.endswith("bbb")
