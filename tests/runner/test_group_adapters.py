"""Adapters on groups of real ranks: a pipeline and a tensor group say what one rank says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bus.wire.messages.requests import GenerationRequest, TokensPrompt
from bus.wire.messages.tokens import Refused
from tests.harness.families import MODELS, write_model
from tests.harness.group_requests import play
from tests.harness.lora import KEYS, draw_adapter
from tests.harness.ranks import Layers, one_gateway, ready_group
from tests.harness.slot import FakeGateway, request

pytestmark = pytest.mark.slow


QWEN_KEYS = (
    *("linear_attn.in_proj_qkvz", "linear_attn.out_proj", "self_attn.k_proj", "self_attn.o_proj"),
    *("mlp.gate", "mlp.shared_expert.up_proj", "mlp.shared_expert.down_proj"),
)
ADAPTED = {"llama": KEYS, "qwen3_next": QWEN_KEYS}
"""Which layers the adapters are of: cut by outputs, by inputs, or not at all."""

OneRank = Callable[[str], tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> OneRank:
    """A model of a family, and what one rank says to the hand."""
    known: dict[str, tuple[Path, dict[str, Any]]] = {}

    def said(family: str) -> tuple[Path, dict[str, Any]]:
        if family not in known:
            folder = adapted(tmp_path_factory.mktemp("group") / family, family)
            with one_gateway(folder) as gateway:
                known[family] = folder, play(gateway, hand())
                assert "dora" in refusal(gateway, "spoilt")
                assert "load it anew" in refusal(gateway, "unheard-of")
        return known[family]

    return said


def adapted(folder: Path, family: str) -> Path:
    """A model with two adapters, and one that cannot be applied."""
    write_model(folder, MODELS[family])
    keys = ADAPTED[family]
    draw_adapter(folder, folder / "adapters" / "one", seed=1, rank=4, scale=20.0, keys=keys)
    draw_adapter(folder, folder / "adapters" / "two", seed=2, rank=8, scale=12.0, keys=keys)
    spoilt = draw_adapter(folder, folder / "adapters" / "spoilt", seed=3, keys=keys)
    config = json.loads((spoilt / "adapter_config.json").read_text())
    (spoilt / "adapter_config.json").write_text(json.dumps({**config, "fine_tune_type": "dora"}))
    return folder


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


@pytest.mark.parametrize(
    ("family", "sharding", "layers"),
    [
        pytest.param("llama", *PIPELINE, marks=pytest.mark.proof),
        ("llama", *TENSOR),
        pytest.param("qwen3_next", *TENSOR, marks=pytest.mark.proof),
    ],
)
def test_a_group_applies_adapters_by_row_as_one_rank_does(
    one_rank: OneRank, family: str, sharding: str, layers: Layers
) -> None:
    model, wanted = one_rank(family)
    texts = {name: tuple(wanted[f"{name}0"]["text"]) for name in ("", "one", "two")}
    assert len(set(texts.values())) == 3
    with ready_group(model, sharding, layers) as (_, gateway):
        got = play(gateway, hand())
        assert {key: one["text"] for key, one in got.items()} == {
            key: one["text"] for key, one in wanted.items()
        }
        assert "dora" in refusal(gateway, "spoilt")


@pytest.mark.parametrize(
    ("sharding", "layers"), [PIPELINE, pytest.param(*TENSOR, marks=pytest.mark.proof)]
)
def test_an_adapter_that_one_rank_lacks_is_refused_by_all(
    one_rank: OneRank, tmp_path: Path, sharding: str, layers: Layers
) -> None:
    model, _ = one_rank("llama")
    other = tmp_path / "llama"
    shutil.copytree(model, other)
    shutil.rmtree(other / "adapters" / "two")
    draw_adapter(other, other / "adapters" / "two", seed=9, rank=8, scale=12.0)
    with ready_group(model, sharding, layers, models={1: other}) as (_, gateway):
        assert "not every node" in refusal(gateway, "two")
        asked = gateway.submit(request("one", adapter="one"))
        gateway.ended(asked)
        assert asked.tokens == 8
