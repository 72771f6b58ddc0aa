"""Adapters on groups of real ranks: a pipeline and a tensor group say what one rank says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bus.wire.messages.requests import GenerationRequest, TokensPrompt
from bus.wire.messages.tokens import Refused
from tests.harness.families import MODELS, write_model
from tests.harness.group_requests import play
from tests.harness.lora import KEYS, draw_adapter
from tests.harness.ranks import one_gateway, ready_group
from tests.harness.slot import FakeGateway
from tests.harness.slot import request as request_named

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
                assert "reload it" in refusal(gateway, "unheard-of")
        return known[family]

    return said


def adapted(folder: Path, family: str) -> Path:
    """A model with three adapters, and one that cannot be applied."""
    write_model(folder, MODELS[family])
    keys = ADAPTED[family]
    draw_adapter(folder, folder / "adapters" / "one", seed=1, rank=4, scale=20.0, keys=keys)
    draw_adapter(folder, folder / "adapters" / "two", seed=2, rank=8, scale=12.0, keys=keys)
    draw_adapter(folder, folder / "adapters" / "theirs", seed=4, rank=8, scale=12.0, keys=keys)
    spoilt = draw_adapter(folder, folder / "adapters" / "spoilt", seed=3, keys=keys)
    config = json.loads((spoilt / "adapter_config.json").read_text())
    (spoilt / "adapter_config.json").write_text(json.dumps({**config, "fine_tune_type": "dora"}))
    return folder


def hand() -> list[GenerationRequest]:
    prompt = TokensPrompt(token_ids=tuple(5 + 7 * at % 250 for at in range(90)))
    return [
        request_named(f"{name}{at}", prompt=prompt, adapter=name or None, max_tokens=16)
        for at in range(3)
        for name in ("", "one", "two")
    ]


def refusal(gateway: FakeGateway, adapter: str) -> str:
    asked = gateway.submit(request_named(f"bad-{adapter}", adapter=adapter))
    gateway.until(lambda: asked.answer is not None, "an answer")
    assert isinstance(asked.answer, Refused), asked.answer
    assert asked.answer.refusal.field == "model"
    return asked.answer.refusal.message


PIPELINE, TENSOR = ("pipeline", [(2, 4), (0, 2)]), ("tensor", [(0, 4)] * 2)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("llama", *PIPELINE), id="llama, pipeline", marks=pytest.mark.proof),
        pytest.param(("llama", *TENSOR), id="llama, tensor"),
        pytest.param(("qwen3_next", *TENSOR), id="qwen3_next, tensor", marks=pytest.mark.proof),
    ],
)
def group(
    one_rank: OneRank, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, FakeGateway]]:
    """A family, and a gateway of a group whose rank 1 has another adapter `theirs` than rank 0."""
    family, sharding, layers = request.param
    model, _ = one_rank(family)
    other = tmp_path_factory.mktemp("other") / family
    shutil.copytree(model, other)
    shutil.rmtree(other / "adapters" / "theirs")
    draw_adapter(
        other, other / "adapters" / "theirs", seed=9, rank=8, scale=12.0, keys=ADAPTED[family]
    )
    with ready_group(model, sharding, layers, models={1: other}) as (_, gateway):
        yield family, gateway


def test_a_group_applies_adapters_by_row_as_one_rank_does(
    one_rank: OneRank, group: tuple[str, FakeGateway]
) -> None:
    family, gateway = group
    _, wanted = one_rank(family)
    texts = {name: tuple(wanted[f"{name}0"]["text"]) for name in ("", "one", "two")}
    assert len(set(texts.values())) == 3
    got = play(gateway, hand())
    assert {key: one["text"] for key, one in got.items()} == {
        key: one["text"] for key, one in wanted.items()
    }
    assert "dora" in refusal(gateway, "spoilt")


def test_an_adapter_that_one_rank_lacks_is_refused_by_all(group: tuple[str, FakeGateway]) -> None:
    _, gateway = group
    assert "not every node" in refusal(gateway, "theirs")
    asked = gateway.submit(request_named("others", adapter="one"))
    gateway.ended(asked)
    assert asked.tokens == 8
