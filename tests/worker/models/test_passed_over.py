from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.wire.ids import is_model_id
from worker.models.passed_over import (
    printable,
    sayable,
    unfit_file,
    unfit_folder,
    unfit_name,
)

SHARDS = [f"model-{n:05}-of-00003.safetensors" for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"a.gguf"}, "GGUF"),
        ({"config.json", "a.gguf"}, "mlx_lm.convert"),
        ({"adapter_config.json", "adapters.safetensors"}, "LoRA"),
        ({"adapter_config.json", "adapter_model.bin"}, "adapters/NAME"),
        ({"config.json", "model.safetensors.incomplete"}, "did not end"),
        ({"model.safetensors"}, "without a config.json"),
        ({"config.json", "pytorch_model.bin"}, "not safetensors"),
        ({"config.json", "consolidated.safetensors"}, "model*.safetensors"),
        ({"config.json", "tokenizer.json"}, "without weights"),
        ({"README.md"}, "neither"),
        (set[str](), "empty"),
        ({"config.json", *SHARDS[1:]}, "model-00001-of-00003.safetensors is missing"),
        ({"config.json", SHARDS[1]}, "and 1 more is missing"),
    ],
)
def test_a_folder_that_is_no_model_says_why_and_the_way_out(names: set[str], said: str) -> None:
    unfit = unfit_folder(names)
    assert unfit is not None and unfit.remedy
    assert said in f"{unfit.why}; {unfit.remedy}"


def test_a_folder_with_all_of_a_models_files_is_fit() -> None:
    assert unfit_folder({"config.json", "model.safetensors"}) is None
    assert unfit_folder({"config.json", *SHARDS, "adapters.safetensors", "old.gguf"}) is None


def test_files_that_have_nothing_to_do_with_models_are_not_spoken_of() -> None:
    assert unfit_file("README.md") is None and unfit_file("notes.txt") is None
    for name in ("a.gguf", "a.zip", "model.safetensors", "a.bin", "a.safetensors.part"):
        assert unfit_file(name) is not None


@given(st.text(min_size=1, max_size=40))
def test_a_name_that_no_request_can_say_comes_with_one_that_can(name: str) -> None:
    unfit = unfit_name(name)
    if unfit is None:
        assert is_model_id(name)
    elif "/" not in name:
        assert is_model_id(sayable(name)) and sayable(name) in unfit.remedy


@given(st.text(alphabet=st.characters(), max_size=20))
def test_names_are_shown_without_what_harms_a_terminal_or_a_frame(name: str) -> None:
    shown = printable(name)
    assert len(shown) == len(name) and shown.isprintable()
    shown.encode()


def test_a_name_of_broken_bytes_can_be_sent() -> None:
    assert printable(b"a\xff\x1b[2J".decode(errors="surrogateescape")) == "a??[2J"
