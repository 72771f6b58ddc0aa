"""What the engine measures for the self-test, on small models, and what a fault changes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.selftest.verdicts import kv_lines, sampling_lines
from runner.mlx.engine import MlxEngine
from runner.mlx.selftest.draws import SETTINGS
from runner.mlx.selftest.models import DRAWN, write_random_model
from runner.mlx.selftest.reuse import measure_reuse
from runner.mlx.selftest.rows import EngineRowFailed, RowDriver, new_row
from tests.harness.slot import ROOT


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text"])
def test_a_kept_prefix_changes_no_token_of_a_small_model(
    engine: Callable[[str], MlxEngine], name: str
) -> None:
    measured = measure_reuse(engine(name))
    assert measured["trims"] is (name == "qwen3")
    (line,) = kv_lines({"kinds": {"full": measured}})
    assert line.outcome == "passed", line.text


def test_the_same_model_is_written_each_time(tmp_path: Path) -> None:
    folders = [write_random_model(tmp_path / name, DRAWN) for name in ("a", "b")]
    assert len({(folder / "model.safetensors").read_bytes() for folder in folders}) == 1


def test_a_made_model_gets_the_tokenizer_of_another(tmp_path: Path) -> None:
    tiny = ROOT / "conf" / "tiny"
    folder = write_random_model(tmp_path / "a", DRAWN, tokenizer_of=tiny)
    assert (folder / "tokenizer.json").read_bytes() == (tiny / "tokenizer.json").read_bytes()


def test_a_failed_row_is_an_error_with_the_engines_words(
    engine: Callable[[str], MlxEngine],
) -> None:
    driver = RowDriver(engine("qwen3"))
    with pytest.raises(EngineRowFailed, match="token ids"):
        driver.alone(new_row([100_000]), 1)


def test_each_setting_of_the_draws_is_judged() -> None:
    logprobs = [-0.05 * at for at in range(400)]
    draws: list[dict[str, Any]] = [
        {"sampling": fields, "counts": [[0, 2048]]} for fields in SETTINGS
    ]
    lines = list(sampling_lines({"twice": [[[1], [2]]] * 2, "next": logprobs, "draws": draws}))
    assert [line.outcome for line in lines] == ["passed", *["failed"] * len(SETTINGS)]
