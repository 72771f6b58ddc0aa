"""How a model's KV is held, as its card has it: by its notes, its node's setting, its family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.worker.models.test_weights import CONFIG, write_model
from worker.models.layers import kv_group
from worker.models.weights import Shelf, Weights

WIDE = CONFIG | {"head_dim": 64}


def weights(tmp_path: Path, kv: Any = "full") -> Weights:
    return Weights(Shelf({}, (tmp_path / "models",), None, True, kv=kv))


@pytest.mark.parametrize(
    ("family", "text", "group", "why"),
    [
        ("qwen3", {"head_dim": 64}, 64, ""),
        ("qwen3", {"head_dim": 96}, 32, ""),
        ("qwen3", {"head_dim": 80}, 0, "the model's head sizes (80)"),
        ("qwen3", {"head_dim": 64, "v_head_dim": 80}, 0, "the model's head sizes (64 and 80)"),
        ("deepseek_v3", {"kv_lora_rank": 512, "qk_rope_head_dim": 64}, 64, ""),
        ("deepseek_v32", {"kv_lora_rank": 512, "index_head_dim": 128}, 0, "keeps an index"),
        ("mamba2", {"head_dim": 64}, 0, "windows or states"),
        ("gpt_oss", {"layer_types": ["sliding_attention"] * 4}, 0, "windows or states"),
        ("gemma3_text", {"head_dim": 256, "sliding_window_pattern": 2}, 64, ""),
    ],
)
def test_a_family_says_whether_its_kv_goes_into_groups(
    family: str, text: dict[str, Any], group: int, why: str
) -> None:
    found, because = kv_group(family, CONFIG | text, 4)
    assert found == group
    assert why in because and bool(because) == (not group)


def test_the_card_goes_before_the_setting(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "models" / "m", WIDE)
    (card,) = weights(tmp_path).look()
    assert (card.kv, card.kv_group, card.kv_value_bytes) == ("full", 64, 4)
    (card,) = weights(tmp_path, "8bit").look()
    assert card.kv == "8bit"
    (folder / "card.toml").write_text('kv = "4bit"\n')
    here = weights(tmp_path, "8bit")
    assert [card.kv for card in here.look()] == ["4bit"]
    assert here.passed_over == ()
    (folder / "card.toml").write_text('kv = "full"\n')
    assert [card.kv for card in weights(tmp_path, "8bit").look()] == ["full"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("rotated", "rotated KV is not supported"),
        ("window", "a window needs its number of tokens, 16 to 9999999"),
        ("q8_0", "q8_0 is called 8bit here"),
        ("6bit", "use full, 8bit, 4bit or a window such as window:4096"),
    ],
)
def test_a_card_that_asks_for_what_is_no_kind_is_refused_by_name(
    tmp_path: Path, word: str, said: str
) -> None:
    folder = write_model(tmp_path / "models" / "m", WIDE)
    (folder / "card.toml").write_text(f'kv = "{word}"\n')
    here = weights(tmp_path)
    here.look()
    (told,) = here.passed_over
    assert told.reason == "bad_card"
    assert f"kv = {word}" in told.why and said in told.why


@pytest.mark.parametrize("by", ["card", "setting"])
def test_a_model_that_stays_in_full_width_is_taken_and_says_why(tmp_path: Path, by: str) -> None:
    folder = write_model(tmp_path / "models" / "m")
    if by == "card":
        (folder / "card.toml").write_text('kv = "8bit"\n')
    here = weights(tmp_path, "full" if by == "card" else "4bit")
    (card,) = here.look()
    assert card.kv == "full" and card.kv_full_because
    (told,) = here.passed_over
    assert told.taken and told.name == "m"
    assert card.kv_full_because in told.why and "has no effect" in told.why
    assert ("card.toml: kv = 8bit" if by == "card" else "[runner] kv = 4bit") in told.why
    (folder / "card.toml").write_text('kv = "full"\n')
    here = weights(tmp_path, "4bit")
    here.look()
    assert here.passed_over == ()


def test_a_window_does_not_ask_for_groups(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "m", CONFIG | {"head_dim": 80})
    here = weights(tmp_path, "window:64")
    (card,) = here.look()
    assert (card.kv, card.kv_group, card.kv_windows) == ("window:64", 0, True)
    assert here.passed_over == ()


@pytest.mark.parametrize(
    "more", [{"index_head_dim": 64}, {"layer_types": ["sliding_attention"] * 2}]
)
def test_a_model_that_can_keep_no_window_is_taken_and_says_why(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    folder = write_model(tmp_path / "models" / "m", WIDE | more)
    (folder / "card.toml").write_text('kv = "window:64"\n')
    here = weights(tmp_path)
    (card,) = here.look()
    assert (card.kv, card.kv_windows) == ("full", False)
    (told,) = here.passed_over
    assert told.taken and "card.toml: kv = window:64 has no effect" in told.why
    assert card.kv_full_because and card.kv_full_because in told.why
