"""Small batches through a trace: the same tokens, few traces kept."""

from __future__ import annotations

import mlx.core as mx
import pytest

from runner.engine import PrefillChunk, RowId
from runner.mlx.kv import new_caches
from runner.mlx.kv.batch import DecodeBatch
from runner.mlx.model.capabilities import measure, trace_agrees
from runner.mlx.model.compiled_decode import MOST_ROWS, STEADY_STEPS, CompiledDecode
from runner.mlx.model.kernels import KernelCache, Outlook


def batch_of(model, shape, lengths) -> DecodeBatch:
    batch = DecodeBatch(shape.codecs)
    for index, length in enumerate(lengths):
        caches = new_caches(model, shape, 0)
        mx.eval(model(mx.arange(3, 3 + length)[None] % 250, cache=caches))
        batch.join(RowId(index), caches, length, mx.array([7 + index]))
    return batch


@pytest.mark.parametrize("lengths", [(9,), (4, 30, 11)])
def test_a_trace_and_the_model_itself_go_the_same_way(engine, lengths):
    model = engine("qwen3")._forward._model
    shape = measure(model)
    plain, traced = batch_of(model, shape, lengths), batch_of(model, shape, lengths)
    trace = CompiledDecode(model, shape.readers(packed=False))
    steps = 0
    for _ in range(80):
        said = []
        for batch in (plain, traced):
            batch.open_step()
            logits = trace.logits(batch) if batch is traced else None
            steps += logits is not None
            if logits is None:
                logits = model(batch.tokens[:, None], cache=batch.caches())[:, -1]
            token = mx.argmax(logits, axis=-1).astype(mx.int32)
            mx.eval(token)
            batch.close_step(token)
            said.append((logits, token.tolist()))
        assert said[0][1] == said[1][1]
        assert mx.allclose(said[0][0], said[1][0], atol=1e-4)
    assert steps >= 80 - 3 * (STEADY_STEPS + 1)


def test_holes_and_large_batches_are_no_trouble(engine):
    model = engine("qwen3")._forward._model
    shape = measure(model)
    trace = CompiledDecode(model, shape.readers(packed=False))
    large = batch_of(model, shape, [5] * (MOST_ROWS + 1))
    for _ in range(STEADY_STEPS + 2):
        large.open_step()
        assert trace.logits(large) is None
        large.close_step(large.tokens)
    batches = [batch_of(model, shape, (20, 6, 9)) for _ in range(2)]
    for batch in batches:
        batch.leave([RowId(0)])
    traced = 0
    for _ in range(STEADY_STEPS + 3):
        found = []
        for batch, may_trace in zip(batches, (True, False), strict=True):
            batch.open_step()
            logits = trace.logits(batch) if may_trace else None
            traced += logits is not None
            if logits is None:
                logits = model(batch.tokens[:, None], cache=batch.caches())[:, -1]
            mx.eval(logits)
            batch.close_step(batch.tokens)
            found.append(logits[mx.array([batch.slot_of(RowId(1)), batch.slot_of(RowId(2))])])
        assert mx.allclose(*found, atol=1e-4)
    assert traced > 0


def test_a_trace_leaves_out_the_gaps_that_drafts_left(engine):
    model = engine("qwen3")._forward._model
    shape = measure(model)
    trace = CompiledDecode(model, shape.readers(packed=False))
    step = trace.trace()
    batches = [batch_of(model, shape, (20, 6)) for _ in range(2)]
    for counts in ((4, 1), (1, 3), (2, 2)):
        logits = []
        for batch, is_traced in zip(batches, (True, False), strict=True):
            batch.open_step(4)
            mx.eval(model(mx.array([[5, 6, 7, 8], [9, 10, 11, 12]]), cache=batch.caches()))
            batch.close_draft(batch.tokens, counts)
            batch.open_step()
            if is_traced:
                logits.append(trace.run(step, batch))
            else:
                logits.append(model(batch.tokens[:, None], cache=batch.caches())[:, -1])
            mx.eval(logits)
            batch.close_step(batch.tokens)
        assert mx.allclose(*logits, atol=1e-4)
    assert batches[0].shape.gaps.keys() == {0, 1}


def test_few_traces_are_kept(engine, monkeypatch):
    monkeypatch.setattr("runner.mlx.model.compiled_decode.KEPT_LAYERS", 1)
    model = engine("qwen3")._forward._model
    shape = measure(model)
    trace = CompiledDecode(model, shape.readers(packed=False))
    for rows in (1, 2, 3, 4, 5, 6):
        batch = batch_of(model, shape, [5] * rows)
        for _ in range(STEADY_STEPS + 2):
            batch.open_step()
            if trace.logits(batch) is None:
                mx.eval(model(batch.tokens[:, None], cache=batch.caches()))
            batch.close_step(batch.tokens)
    assert len(trace._steps) == 4


def test_models_with_other_caches_are_not_traced(engine):
    model = engine("gemma3_text")._forward._model
    assert not trace_agrees(model, measure(model))
    model = engine("llama")._forward._model
    assert trace_agrees(model, measure(model))


def test_an_engine_that_starts_tracing_midway_says_the_same(drive, engine, new_row):
    player = drive("qwen3")
    wanted = player.alone(new_row(range(3, 30)), 40)
    forward = engine("qwen3")._forward
    row = new_row(range(3, 30))
    before, forward._compiled = forward._compiled, None
    try:
        player.step(admit=(row,), prefill=((PrefillChunk(row.row, 0, 27),),))
        for count in range(39):
            if count == 11:
                assert forward.traces()
                forward.trace()
            player.step(decode=(row.row,))
        player.finish(row.row)
    finally:
        forward._compiled = before
    assert player.ids(row.row) == wanted


def test_a_cold_cache_is_filled_by_a_child_and_then_warm(model_folder, monkeypatch, tmp_path):
    if mx.metal.is_available():
        pytest.skip("Metal needs no kernels compiled ahead")
    mark = tmp_path / "mark"
    monkeypatch.setattr("runner.mlx.model.kernels._mark", lambda path, kind: mark)
    cache = KernelCache(model_folder("qwen3"), 10)
    assert not cache.warm
    assert cache.outlook() == Outlook.NEVER
    monkeypatch.setattr("runner.mlx.model.kernels.sys.executable", "/bin/true")
    cache.fill()
    cache._child.wait()
    assert cache.outlook() == Outlook.NEVER
    mark.touch()
    waits = tmp_path / "waits"
    waits.write_text("#!/bin/sh\nexec sleep 60\n")
    waits.chmod(0o755)
    monkeypatch.setattr("runner.mlx.model.kernels.sys.executable", str(waits))
    cache.fill()
    assert cache.outlook() == Outlook.SOON
    cache._child.kill()
    cache._child.wait()
    assert cache.outlook() == Outlook.WARM
    cache.close()
