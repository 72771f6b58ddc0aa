"""Models whose KV is held in fewer bits: rows apart, prefixes, memory, families, and figures."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from runner.engine import EntryId, PrefillChunk, PrefixHit, PrefixInsert
from runner.mlx.engine import load_engine
from runner.mlx.model.load import load_weights
from tests.harness.families import MODELS, write_model
from tests.harness.kv_figures import Figures, figures, in_kind
from tests.harness.slot import ROOT
from tests.runner.mlx.conftest import Drive, holds_as, spec

TINY = ROOT / "conf" / "tiny"
FEWER = ["8bit", "4bit"]
PROVING = bool(os.environ.get("SHOAL_PROVE"))
ROWS, TOKENS = 16, 120 if PROVING else 14
WIDE = {"head_dim": 32}
LATENT = {"kv_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32}
FAMILIES = {
    "qwen3": WIDE,
    "llama": WIDE | {"head_dim": 64},
    "qwen3_moe": WIDE,
    "gpt_oss": WIDE,
    "deepseek_v3": LATENT,
}
"""Random models. Of gpt-oss, whose every other layer keeps a window, and of DeepSeek attention is
given KV in full width."""
PROMPTS, LENGTH = (50, 64) if PROVING else (4, 40)
BOUNDS = {"8bit": (0.1, 12.0), "4bit": (4.0, 40.0)}
"""The largest KL (nats a token) and error of a logit. Random weights make much of a rounding."""


def prompt(number: int, length: int) -> list[int]:
    return [3 + (11 * number + 7 * at * at) % 1900 for at in range(length)]


@pytest.fixture(scope="module", params=FEWER)
def player(request):
    engine = load_engine(TINY, memory_limit_bytes=4 << 30, kv=request.param)
    yield Drive(engine)
    engine.close()


def test_a_row_says_the_same_alone_and_beside_fifteen_others(player, new_row):
    specs = [new_row(prompt(number, 5 + 9 * number)) for number in range(ROWS)]
    cut = [len(spec.tokens) // 2 for spec in specs]
    player.step(
        admit=tuple(specs),
        prefill=(
            tuple(PrefillChunk(s.row, 0, c) for s, c in zip(specs[:8], cut, strict=False)),
            tuple(PrefillChunk(s.row, 0, len(s.tokens)) for s in specs[8:]),
        ),
    )
    late = specs[:8]
    player.step(
        prefill=(
            tuple(PrefillChunk(s.row, c, len(s.tokens)) for s, c in zip(late, cut, strict=False)),
        ),
        decode=tuple(s.row for s in specs[8:]),
    )
    for _ in range(TOKENS - 2):
        player.step(decode=tuple(s.row for s in specs))
    held = player.engine.memory().kv_bytes
    longest = max(len(s.tokens) for s in specs) + TOKENS
    billed = ROWS * longest * player.engine.facts.kv_bytes_per_token
    player.finish(*(s.row for s in specs))
    assert not player.failures
    assert (
        0.9 * billed <= held <= 1.1 * billed + ROWS * 128 * player.engine.facts.kv_bytes_per_token
    )
    for one in specs[:: 1 if PROVING else 5]:
        alone = player.alone(new_row(one.tokens), TOKENS - 2)
        assert player.ids(one.row)[: TOKENS - 2] == alone


def test_the_bytes_of_a_token_are_those_of_the_bill(player):
    facts = player.engine.facts
    full = 8 * 2 * 4 * 32 * 4
    groups = full // 4 // 32
    bits = {"8bit": 8, "4bit": 4}[str(facts.extra["kv"])]
    assert facts.kv_bytes_per_token == full // 4 * bits // 8 + groups * 8
    assert facts.extra["kv_packed"] is True


def test_a_kept_prefix_takes_its_bill_and_changes_nothing(player, new_row):
    tokens = prompt(3, 90)
    wanted = player.alone(new_row(tokens), 12)
    giver, entry = new_row(tokens), EntryId(1)
    whole = PrefillChunk(giver.row, 0, 90)
    player.step(admit=(giver,), prefill=((whole,),), insert=(PrefixInsert(entry, giver.row, 80),))
    for length in (1, 32, 80):
        taker = new_row(tokens)
        rest = PrefillChunk(taker.row, length, 90)
        hit = PrefixHit(taker.row, entry, length)
        player.step(admit=(taker,), hits=(hit,), prefill=((rest,),))
        for _ in range(11):
            player.step(decode=(taker.row, giver.row))
        player.step(release=(taker.row,))
        assert player.ids(taker.row) == wanted
    player.finish(giver.row)
    per_token = player.engine.facts.kv_bytes_per_token
    assert player.engine.memory().prefix_bytes == 80 * per_token
    player.step(evict=(entry,))
    player.finish()


@pytest.mark.parametrize(
    ("family", "more", "held"),
    [
        ("llama", WIDE, "8bit"),
        ("llama", {"head_dim": 16}, "full"),
        ("gemma3_text", WIDE, "8bit in 2 of 4 layers"),
        ("qwen3_next", WIDE, "8bit in 2 of 4 layers"),
        ("mamba2", {}, "full"),
        ("deepseek_v3", LATENT, "8bit"),
        ("gpt_oss", WIDE, "8bit in 2 of 4 layers"),
    ],
)
def test_a_family_holds_in_fewer_bits_what_it_can(tmp_path, family, more, held):
    folder = write_model(tmp_path / family, MODELS[family] | more)
    holds_as(folder, "8bit", held, 10)


def note(model: str, kind: str, found: Figures) -> None:
    """One line of the table."""
    line = json.dumps({"model": model, "kv": kind} | asdict(found))
    print(line)
    if PROVING:
        results = ROOT / "prove-results"
        results.mkdir(exist_ok=True)
        with open(results / "kv.jsonl", "a") as file:
            file.write(line + "\n")


@pytest.mark.parametrize("family", [*FAMILIES] if PROVING else ["llama", "deepseek_v3"])
def test_what_fewer_bits_change_of_random_families(tmp_path, family):
    folder = write_model(tmp_path / family, MODELS[family] | FAMILIES[family])
    model = load_weights(folder, "float32", lambda _: None).model
    texts = [[3 + (13 * n + 7 * at * at) % 250 for at in range(LENGTH)] for n in range(PROMPTS)]
    assert figures(model, in_kind("full"), texts[:2]).kl == 0.0
    found = {kind: figures(model, in_kind(kind), texts) for kind in FEWER}
    for kind, one in found.items():
        note(family, kind, one)
        most_kl, most_off = BOUNDS[kind]
        assert 0.0 < one.kl < most_kl and one.largest_error < most_off
    assert found["8bit"].kl < found["4bit"].kl


def test_what_fewer_bits_change_of_the_bundled_model():
    """On its own speech, whose perplexity in full width is low."""
    engine = load_engine(TINY, memory_limit_bytes=4 << 30)
    rows = [spec(prompt(number, 6)) for number in range(PROMPTS)]
    said = Drive(engine).together(rows, 2 * LENGTH)
    texts = [[*row.tokens, *own] for row, own in zip(rows, said, strict=True)]
    engine.close()
    model = load_weights(Path(TINY), "float32", lambda _: None).model
    full = figures(model, in_kind("full"), texts)
    found = {kind: figures(model, in_kind(kind), texts) for kind in FEWER}
    for kind, one in ({"full": full} | found).items():
        note("bundled", kind, one)
    assert found["8bit"].same_best > 0.97
    assert found["8bit"].perplexity < 1.02 * full.perplexity
    assert found["4bit"].same_best > 0.7
    assert found["8bit"].kl < found["4bit"].kl
