"""What a group says is what one rank says: crowds of prompts on every shape of group.

Every rank is a process on loopback, in float32 unless a name says otherwise. Requests join and
leave while others run, some prompts begin with another one, some are computed in chunks. `make
prove-parity` plays 56 prompts greedily and 24 with seeds on each group. Greedy rows may part only
where the two likeliest tokens are within the noise, and each line prints how many did. The
families' random weights are scaled (`write_model`), so that gaps are seldom so small. So may any
row of a mixture whose router scores two experts alike to the last digits.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bus.wire.messages.requests import TokensPrompt
from bus.wire.messages.tokens import Failed
from runner.lifecycle import ENGINE_ERROR, GROUP_LOST
from tests.harness.families import MODELS, ODD, QUANTISED, write_model
from tests.harness.group_requests import (
    NOISE,
    ROUGH_NOISE,
    Parity,
    Said,
    compare,
    crowd,
    endless,
    play_crowd,
)
from tests.harness.ranks import (
    LAYERS,
    TINY,
    Layers,
    become,
    group_spec,
    one_gateway,
    ready_group,
    stages,
    started_ranks,
    until_ready,
)
from tests.harness.routing import ROUTER_NOISE, router_gap
from tests.harness.slot import ROOT, FakeGateway

pytestmark = pytest.mark.slow

PROVING = bool(os.environ.get("SHOAL_PROVE"))
PROMPTS, DRAWN = 56, 24
FEW = 8
FAMILIES = MODELS | QUANTISED | ODD
BUNDLED = "bundled"
RESULTS = ROOT / "prove-results"
OTHERS_LAYERS = 4

Alone = tuple[Path, dict[str, Said], dict[str, Said]]


def note(model: str, shape: str, kind: str, parity: Parity, seconds: float) -> None:
    """One line of the table."""
    row: dict[str, Any] = {"model": model, "shape": shape, "kind": kind} | asdict(parity)
    row["seconds"] = round(seconds, 1)
    print(json.dumps(row))
    if PROVING:
        RESULTS.mkdir(exist_ok=True)
        with open(RESULTS / "parity.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")


def hands(model: str, silent: int = 0) -> tuple[Any, Any]:
    """The greedy and the drawn crowd; half of the drawn one's prompts are the other's."""
    texts, second = model == BUNDLED, PROMPTS - DRAWN // 2
    return (
        crowd(range(PROMPTS), texts=texts, silent=silent),
        crowd(range(second, second + DRAWN), texts=texts, silent=silent, drawn=True),
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Alone]:
    """What one rank says to both crowds, by model."""
    known: dict[str, Alone] = {}

    def outcomes(model: str) -> Alone:
        if model not in known:
            folder = TINY
            if model != BUNDLED:
                folder = write_model(tmp_path_factory.mktemp("parity") / model, FAMILIES[model])
            greedy, drawn = hands(model)
            with one_gateway(TINY) if folder == TINY else one_gateway(folder) as gateway:
                known[model] = folder, play_crowd(gateway, greedy), play_crowd(gateway, drawn)
        return known[model]

    return outcomes


def hold(model: str, shape: str, gateway: FakeGateway, one_rank: Alone) -> None:
    """Play both crowds, note what came of them, and hold it to what one rank said."""
    greedy, drawn = hands(model, silent=5)
    noise = NOISE if model == BUNDLED else ROUGH_NOISE
    found: list[Parity] = []
    for kind, hand, wanted in (("greedy", greedy, one_rank[1]), ("seeded", drawn, one_rank[2])):
        since = time.monotonic()
        said = play_crowd(gateway, hand)
        parity = compare(said, wanted, greedy=kind == "greedy", noise=noise)
        note(model, shape, kind, parity, time.monotonic() - since)
        found.append(parity)
    prompts = {one.request_id: one.prompt for one in (*greedy, *drawn)}
    for parity, wanted in zip(found, one_rank[1:], strict=True):
        routed = [one for one in parity.unequal if is_routed(one, one_rank[0], prompts, wanted)]
        assert [one for one in parity.unequal if one not in routed] == []
        assert parity.equal + len(parity.ties) + len(routed) == parity.prompts
        assert parity.off_by < noise
    assert sum(parity.cached for parity in found) > 0, "no prompt began with one that was kept"


def is_routed(
    parted: tuple[str, int, float], folder: Path, prompts: Any, wanted: dict[str, Said]
) -> bool:
    """Whether two experts of a mixture scored alike before a row parted."""
    name, at, _ = parted
    prompt = prompts[name]
    if at < 0 or not isinstance(prompt, TokensPrompt):
        return False
    gap = router_gap(folder, prompt.token_ids, wanted[name].ids[:at])
    print(f"{name} parts at {at}; the router's least gap until then: {gap}")
    return gap < ROUTER_NOISE


BUNDLED_SHAPES = [
    pytest.param("tensor", [(0, LAYERS)] * 2, id="tensor over 2"),
    pytest.param("pipeline", stages(LAYERS, 2), id="pipeline of 2"),
    pytest.param("pipeline", stages(LAYERS, 3), id="pipeline of 3"),
]


@pytest.mark.proof  # test_groups.py and test_group_spans.py play a hand of requests on both shapes
@pytest.mark.parametrize(("sharding", "layers"), BUNDLED_SHAPES)
def test_a_crowd_hears_from_a_group_what_one_rank_says(
    alone: Callable[[str], Alone], sharding: str, layers: Layers
) -> None:
    one_rank = alone(BUNDLED)
    with ready_group(TINY, sharding, layers) as (_, gateway):
        hold(BUNDLED, f"{sharding} {len(layers)}", gateway, one_rank)


PACKED = ["llama, 4 bits", "qwen3_moe, 4 bits"]
PIPELINES = ["llama", "qwen3_moe", "gemma3_text", "qwen3_next", "deepseek_v3", "mamba2", *PACKED]
PIPELINES += ["gemma4_text", "muse_glimmer", "nemotron_h", "talkie"]
TENSOR = ["llama", "qwen3_moe", "gpt_oss", "deepseek_v3", "llama, 4 bits"]
TENSOR += ["qwen3_next", "nemotron_h"]
SHAPES = [("tensor", 2), ("pipeline", 2), ("pipeline", 3)]
OTHERS = [
    pytest.param(name, sharding, ranks, id=f"{name}, {sharding} {ranks}")
    for name in dict.fromkeys(PIPELINES + TENSOR)
    for sharding, ranks in SHAPES
    if name in (TENSOR if sharding == "tensor" else PIPELINES)
    and not (ranks == 3 and name in ("gemma4_text", "talkie"))
]
"""Of the last two the middle of three stages is refused: its layers look at the tokens."""


@pytest.mark.proof
@pytest.mark.parametrize(("model", "sharding", "ranks"), OTHERS)
def test_a_crowd_hears_from_a_group_of_any_family_what_one_rank_says(
    alone: Callable[[str], Alone], model: str, sharding: str, ranks: int
) -> None:
    folder, *_ = one_rank = alone(model)
    whole = [(0, OTHERS_LAYERS)] * ranks
    layers = whole if sharding == "tensor" else stages(OTHERS_LAYERS, ranks)
    with ready_group(folder, sharding, layers) as (_, gateway):
        hold(model, f"{sharding} {ranks}", gateway, one_rank)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("sharding", "layers"),
    [
        pytest.param("tensor", [(0, LAYERS)] * 4, id="tensor over 4"),
        pytest.param("pipeline", stages(LAYERS, 4), id="pipeline of 4"),
    ],
)
def test_four_ranks_say_what_one_rank_says(
    alone: Callable[[str], Alone], sharding: str, layers: Layers
) -> None:
    """A few prompts: four ranks that spin share two cores."""
    folder, wanted, _ = alone(BUNDLED)
    hand = crowd(range(FEW), texts=True)
    with ready_group(folder, sharding, layers, seconds=180.0) as (_, gateway):
        since = time.monotonic()
        found = play_crowd(gateway, hand)
    truth = {name: wanted[name] for name in found}
    parity = compare(found, truth, greedy=True, noise=NOISE)
    note(BUNDLED, f"{sharding} {len(layers)}", "greedy", parity, time.monotonic() - since)
    assert not parity.unequal
    assert parity.off_by < NOISE


@pytest.mark.proof
@pytest.mark.parametrize(("sharding", "layers"), BUNDLED_SHAPES)
def test_in_bfloat16_all_ranks_agree(
    alone: Callable[[str], Alone], sharding: str, layers: Layers
) -> None:
    """Every rank that hears tokens checks, before each plan, the digest of all that the lead has
    committed, and ends the group where it differs (the test below): so a group that comes to the
    end of a crowd is one whose ranks agree. What one rank says in float32 is only compared."""
    _, wanted, _ = alone(BUNDLED)
    hand = crowd(range(PROMPTS), texts=True)
    with ready_group(TINY, sharding, layers, dtype="bfloat16") as (slots, gateway):
        since = time.monotonic()
        found = play_crowd(gateway, hand)
        parity = compare(found, wanted, greedy=True, noise=NOISE)
        note(
            BUNDLED,
            f"{sharding} {len(layers)}",
            "bfloat16 against float32",
            parity,
            time.monotonic() - since,
        )
        for slot in slots[1:]:
            reached = slots[0].hellos[-1].step
            slot.until(
                lambda slot=slot, reached=reached: slot.hellos[-1].step >= reached, "all steps"
            )
            assert slot.phase == "ready"
        assert all(slot.process.poll() is None for slot in slots)


@pytest.mark.parametrize(
    ("sharding", "layers"),
    [
        pytest.param("tensor", [(0, LAYERS)] * 2, id="tensor over 2", marks=pytest.mark.proof),
        pytest.param("pipeline", stages(LAYERS, 2), id="pipeline of 2"),
    ],
)
def test_a_rank_that_heard_another_token_ends_the_group(sharding: str, layers: Layers) -> None:
    group = group_spec(sharding, layers)
    with started_ranks(TINY, group, faults={1: "stray"}, dtype="bfloat16") as slots:
        become(slots)
        until_ready(slots)
        gateway = FakeGateway(slots[0])
        try:
            stream = gateway.submit(endless("a"))
            gateway.ended(stream, seconds=60)
        finally:
            gateway.close()
        assert isinstance(stream.end, Failed)
        assert stream.end.reason == "runner_lost"
        assert stream.tokens > 0
        assert slots[1].exit_code() == ENGINE_ERROR
        assert slots[1].ended is not None
        assert "tokens differ from the lead's up to step" in slots[1].ended.message
        assert slots[0].exit_code() == GROUP_LOST
