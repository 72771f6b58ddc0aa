"""Adapters on groups of real ranks: a pipeline and a tensor group say what one rank says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bus.wire.messages.requests import GenerationRequest, TokensPrompt
from bus.wire.messages.tokens import Refused
from tests.harness.families import MODELS, write_model
from tests.harness.group_requests import play
from tests.harness.lora import draw_adapter
from tests.harness.ranks import Layers, one_gateway, ready_group
from tests.harness.slot import FakeGateway, request

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_model(tmp_path_factory.mktemp("group") / "llama", MODELS["llama"])
    draw_adapter(folder, folder / "adapters" / "one", seed=1, rank=4, scale=20.0)
    draw_adapter(folder, folder / "adapters" / "two", seed=2, rank=8, scale=12.0)
    spoilt = draw_adapter(folder, folder / "adapters" / "spoilt", seed=3)
    config = json.loads((spoilt / "adapter_config.json").read_text())
    (spoilt / "adapter_config.json").write_text(json.dumps({**config, "fine_tune_type": "dora"}))
    return folder


@pytest.fixture(scope="module")
def one_rank(model: Path) -> dict[str, Any]:
    """What one rank says to the hand."""
    with one_gateway(model) as gateway:
        said = play(gateway, hand())
        assert "dora" in refusal(gateway, "spoilt")
        assert "load it anew" in refusal(gateway, "unheard-of")
    return said


def hand() -> list[GenerationRequest]:
    prompt = TokensPrompt(token_ids=tuple(5 + 7 * at % 250 for at in range(90)))
    return [
        request(f"{name}{at}", prompt=prompt, adapter=name or None, max_tokens=16)
        for at in range(3)
        for name in ("", "one", "two")
    ]


def refusal(gateway: FakeGateway, adapter: str) -> str:
    asked = gateway.submit(request(f"bad-{adapter}", adapter=adapter))
    gateway.until(lambda: asked.answer is not None, "an answer")
    assert isinstance(asked.answer, Refused), asked.answer
    assert asked.answer.refusal.field == "model"
    return asked.answer.refusal.message


PIPELINE, TENSOR = ("pipeline", [(2, 4), (0, 2)]), ("tensor", [(0, 4)] * 2)
SHAPES = pytest.mark.parametrize(("sharding", "layers"), [PIPELINE, TENSOR])


@SHAPES
def test_a_group_applies_adapters_by_row_as_one_rank_does(
    model: Path, one_rank: dict[str, Any], sharding: str, layers: Layers
) -> None:
    texts = {name: tuple(one_rank[f"{name}0"]["text"]) for name in ("", "one", "two")}
    assert len(set(texts.values())) == 3
    with ready_group(model, sharding, layers) as (_, gateway):
        got = play(gateway, hand())
        assert {key: one["text"] for key, one in got.items()} == {
            key: one["text"] for key, one in one_rank.items()
        }
        assert "dora" in refusal(gateway, "spoilt")


@SHAPES
def test_an_adapter_that_one_rank_lacks_is_refused_by_all(
    model: Path, tmp_path: Path, sharding: str, layers: Layers
) -> None:
    other = tmp_path / "llama"
    shutil.copytree(model, other)
    shutil.rmtree(other / "adapters" / "two")
    draw_adapter(other, other / "adapters" / "two", seed=9, rank=8, scale=12.0)
    with ready_group(model, sharding, layers, models={1: other}) as (_, gateway):
        assert "not every node" in refusal(gateway, "two")
        asked = gateway.submit(request("one", adapter="one"))
        gateway.ended(asked)
        assert asked.tokens == 8
