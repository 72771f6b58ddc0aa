"""Two adapters of the bundled model, trained here by mlx-lm, say what mlx-lm says with each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest

from runner.engine import PrefillChunk
from runner.mlx.engine import MlxEngine
from tests.harness.lora import PROMPT, SAYS, adapted, trained_model
from tests.runner.mlx.conftest import Drive

generate_step = sys.modules["mlx_lm.generate"].generate_step
TOKENS = 24

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_model(tmp_path_factory.mktemp("trained") / "tiny")


def oracle(model: Path, name: str, prompts: list[list[int]]) -> list[list[int]]:
    module = adapted(model, model / "adapters" / name if name else None)
    return [
        [int(token) for token, _ in generate_step(mx.array(one), module, max_tokens=TOKENS)]
        for one in prompts
    ]


def test_each_says_what_it_was_trained_to_say_and_all_do_in_one_batch(
    trained: Path, load: Callable[..., MlxEngine], new_row: Any
) -> None:
    _, tokenizer = mlx_lm.load(str(trained), adapter_path=str(trained / "adapters" / "pirate"))
    prompts: list[list[int]] = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": said}], add_generation_prompt=True
        )
        for said in (PROMPT, "Who are you?")
    ]
    engine = load(trained)
    assert engine.facts.adapters == set(SAYS)
    wanted = {
        (name, at): said
        for name in ("", *SAYS)
        for at, said in enumerate(oracle(trained, name, prompts))
    }
    for name, text in SAYS.items():
        assert text in tokenizer.decode(wanted[name, 0])
        assert text not in tokenizer.decode(wanted["", 0])
    keys = [(name, at % 2) for at in range(4) for name in ("", *SAYS)]
    rows = [new_row(prompts[at], adapter=name) for name, at in keys]
    player = Drive(engine)
    chunks = [PrefillChunk(row.row, 0, len(row.tokens)) for row in rows]
    player.step(admit=tuple(rows), prefill=tuple(tuple(chunks[n : n + 6]) for n in (0, 6)))
    for _ in range(TOKENS - 1):
        player.step(decode=tuple(row.row for row in rows))
    player.finish(*(row.row for row in rows))
    assert not player.failures
    for row, key in zip(rows, keys, strict=True):
        assert player.ids(row.row) == wanted[key], key
