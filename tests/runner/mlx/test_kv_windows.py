"""Models of whose KV rows keep a window: beside each other, prefixes, memory, families."""

from __future__ import annotations

import os
import sys
from itertools import pairwise

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import make_prompt_cache

from runner.engine import EntryId, PrefillChunk, PrefixHit, PrefixInsert
from runner.mlx.engine import load_engine
from runner.mlx.kv import WindowKV, new_caches
from runner.mlx.model.capabilities import measure
from runner.mlx.model.load import load_weights
from tests.harness.families import MODELS, write_model
from tests.harness.slot import ROOT
from tests.runner.mlx.conftest import Drive, holds_as, spec

TINY = ROOT / "conf" / "tiny"
WINDOW = 28
KIND = f"window:{WINDOW}"
A_TOKEN = 8 * 2 * 4 * 32 * 4
PROVING = bool(os.environ.get("SHOAL_PROVE"))
ROWS, TOKENS = (17, 160) if PROVING else (9, 40)
LATENT = {"kv_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32}


def prompt(number: int, length: int) -> list[int]:
    return [3 + (11 * number + 7 * at * at) % 1900 for at in range(length)]


@pytest.fixture(scope="module")
def player():
    engine = load_engine(TINY, memory_limit_bytes=4 << 30, kv=KIND)
    yield Drive(engine)
    engine.close()


def test_a_row_says_what_mlx_lms_rotating_cache_says(player, new_row):
    """For a prompt that fits: of a longer one the cache there shows more than the window."""
    model = load_weights(TINY, "float32", lambda _: None).model
    tokens = prompt(2, 20)
    steps = sys.modules["mlx_lm.generate"].generate_step(
        mx.array(tokens),
        model,
        max_tokens=48,
        prompt_cache=make_prompt_cache(model, max_kv_size=WINDOW + 4),
    )
    wanted = [int(token) for token, _ in steps]
    assert player.alone(new_row(tokens), 48) == wanted


def test_a_window_that_holds_the_whole_text_changes_nothing(new_row):
    said = []
    for kind in ("full", "window:4096"):
        engine = load_engine(TINY, memory_limit_bytes=4 << 30, kv=kind)
        said.append(Drive(engine).alone(spec(prompt(4, 90)), 20))
        engine.close()
    assert said[0] == said[1]


def test_a_row_says_the_same_alone_and_beside_others_and_takes_its_bill(player, new_row):
    specs = [new_row(prompt(number, 5 + 13 * number)) for number in range(ROWS)]
    cut = [1 + len(spec.tokens) // 2 for spec in specs]
    early, late = specs[:5], specs[5:]
    player.step(
        admit=tuple(specs),
        prefill=(
            tuple(PrefillChunk(s.row, 0, len(s.tokens)) for s in early),
            tuple(PrefillChunk(s.row, 0, c) for s, c in zip(late, cut[5:], strict=True)),
        ),
    )
    player.step(
        prefill=(
            tuple(
                PrefillChunk(s.row, c, len(s.tokens)) for s, c in zip(late, cut[5:], strict=True)
            ),
        ),
        decode=tuple(s.row for s in early),
    )
    player.step(release=(early[0].row,), decode=tuple(s.row for s in specs[1:]))
    for _ in range(TOKENS - 3):
        player.step(decode=tuple(s.row for s in specs[1:]))
    held = player.engine.memory().kv_bytes
    facts = player.engine.facts
    assert (facts.kv_bytes_per_token, facts.kv_bytes_fixed) == (0, (WINDOW + 4) * A_TOKEN)
    assert held == (ROWS - 1) * facts.kv_bytes_fixed
    player.finish(*(s.row for s in specs[1:]))
    assert not player.failures
    for one in specs[1 :: 1 if PROVING else 3]:
        alone = player.alone(new_row(one.tokens), TOKENS - 2)
        assert player.ids(one.row)[: TOKENS - 2] == alone


def test_memory_does_not_grow_with_the_text(player, new_row):
    row = new_row(prompt(1, 300))
    chunks = [PrefillChunk(row.row, at, at + 100) for at in (0, 100, 200)]
    for at, chunk in enumerate(chunks):
        player.step(admit=() if at else (row,), prefill=((chunk,),))
        assert player.engine.memory().kv_bytes == (WINDOW + 4) * A_TOKEN
    for _ in range(60):
        player.step(decode=(row.row,))
    assert player.engine.memory().kv_bytes == (WINDOW + 4) * A_TOKEN
    player.finish(row.row)
    assert len(player.ids(row.row)) == 61


def test_the_chunks_in_which_a_prompt_came_change_nothing(player, new_row):
    tokens = prompt(6, 120)
    wanted = player.alone(new_row(tokens), 12)
    for cuts in ((0, 3, 4, 5, 33, 120), (0, 64, 119, 120)):
        row = new_row(tokens)
        for start, stop in pairwise(cuts):
            chunk = PrefillChunk(row.row, start, stop)
            player.step(admit=() if start else (row,), prefill=((chunk,),))
        for _ in range(11):
            player.step(decode=(row.row,))
        player.finish(row.row)
        assert player.ids(row.row) == wanted


def test_a_kept_prefix_serves_those_who_begin_with_all_of_it_and_changes_nothing(player, new_row):
    tokens = prompt(3, 90)
    wanted = player.alone(new_row(tokens), 12)
    giver, entry = new_row(tokens), EntryId(1)
    first = PrefillChunk(giver.row, 0, 80)
    player.step(admit=(giver,), prefill=((first,),), insert=(PrefixInsert(entry, giver.row, 80),))
    player.step(prefill=((PrefillChunk(giver.row, 80, 90),),))
    for length in (80, 64):
        taker = new_row(tokens)
        # What cannot be cut to 64 tokens is computed: the first chunk has it, too.
        rest = PrefillChunk(taker.row, length, 90)
        hit = PrefixHit(taker.row, entry, length)
        player.step(admit=(taker,), hits=(hit,), prefill=((rest,),))
        for _ in range(11):
            player.step(decode=(taker.row, giver.row))
        player.step(release=(taker.row,))
        assert player.ids(taker.row) == wanted
    player.finish(giver.row)
    assert player.engine.memory().prefix_bytes == (WINDOW + 4) * A_TOKEN
    player.step(evict=(entry,))
    player.finish()


@pytest.mark.parametrize(
    ("family", "more", "held"),
    [
        ("llama", {}, "window:16"),
        ("qwen3_moe", {}, "window:16"),
        ("gemma3_text", {}, "window:16 in 2 of 4 layers"),
        ("qwen3_next", {}, "window:16 in 2 of 4 layers"),
        ("gpt_oss", {}, "window:16 in 2 of 4 layers"),
        ("deepseek_v3", LATENT, "window:16"),
        ("mamba2", {}, "full"),
    ],
)
def test_a_family_keeps_windows_of_what_it_can(tmp_path, family, more, held):
    folder = write_model(tmp_path / family, MODELS[family] | more)
    holds_as(folder, "window:16", held, 20)


class ByOrder(nn.Module):
    """A model of one layer whose attention looks at how far back a key lies among those that it is
    given: it cannot have them in another order."""

    def __init__(self, leans: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layers = [nn.Linear(16, 16)]
        self.leans = leans

    def __call__(self, inputs: mx.array, cache: list) -> mx.array:
        x = self.embed(inputs)
        (own,) = cache
        mask = create_attention_mask(x, own, return_array=True)
        keys, values = own.update_and_fetch(x[:, None], self.layers[0](x)[:, None])
        scores = x[:, None] @ keys.swapaxes(2, 3)
        if self.leans:
            scores = scores + 0.3 * mx.arange(keys.shape[2])
        if isinstance(mask, mx.array):
            scores = mx.where(mask, scores, -1e9)
        return (mx.softmax(scores, -1) @ values)[:, 0] @ self.embed.weight.T


@pytest.mark.parametrize("leans", [False, True])
def test_attention_that_asks_for_order_keeps_everything(leans):
    mx.random.seed(1)
    model = ByOrder(leans)
    shape = measure(model, "window:16")
    (cache,) = new_caches(model, shape, 0)
    assert isinstance(cache, WindowKV) == (not leans)
    assert (shape.kv_bytes_per_token == 0) == (not leans)
    assert shape.trims == leans


def test_a_window_longer_than_the_context_is_billed_as_the_context():
    model = load_weights(TINY, "float32", lambda _: None).model
    assert measure(model, "window:9000", 4096).kv_bytes_fixed == 4096 * A_TOKEN
    assert measure(model, "window:1000", 4096).kv_bytes_fixed == 1004 * A_TOKEN
