"""Stages of a pipeline in one process, hand to hand: traced or not, the model's own logits."""

from __future__ import annotations

from collections import deque

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model

from runner.mlx.model.capabilities import measure, trace_agrees
from runner.mlx.model.compiled_decode import STEADY_STEPS, CompiledDecode
from runner.mlx.ranks.pipeline_stage import StageModel
from tests.runner.mlx.model.test_compiled_decode import batch_of

STEPS = 70


class Neighbours:
    """What a part knows of its comm; hidden states pass through `wire`."""

    def __init__(self, wire: deque[mx.array], *, leads: bool, hears: bool = True) -> None:
        self.wire = wire
        self.leads = leads
        self.hears = hears
        self.pipes = True

    def recv_hidden(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        hidden = self.wire.popleft()
        assert hidden.dtype == dtype
        return hidden.reshape(shape)

    def send_hidden(self, hidden: mx.array) -> mx.array:
        self.wire.append(hidden)
        return hidden


@pytest.fixture
def stages(model_folder):
    """Two stages of one model, the first one first, rehearsed as at load, and the model whole."""

    def loaded(family, cut=1):
        wire = deque()
        whole = load_model(model_folder(family))[0]
        later, first = (load_model(model_folder(family))[0] for _ in range(2))
        parts = [
            StageModel(first, Neighbours(wire, leads=False), 0, cut),
            StageModel(later, Neighbours(wire, leads=True), cut, 4),
        ]
        shapes = []
        for part in parts:
            with part.rehearsal():
                shapes.append(measure(part))
        assert not wire, "a rehearsal exchanges nothing"
        return whole, list(zip(parts, shapes, strict=True)), wire

    return loaded


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe"])
def test_traced_stages_say_what_the_whole_model_says(stages, family):
    whole, parts, wire = stages(family)
    shape = measure(whole)
    for part, own in parts:
        with part.rehearsal():
            assert trace_agrees(part, own)
    batch = batch_of(whole, shape, (4, 30))
    own_batches = []
    for part, own in parts:
        own_batches.append(batch_of(part, own, (4, 30)))
        assert len(wire) == (0 if part is parts[-1][0] else 2)
    traces = [CompiledDecode(part, own.readers(packed=False)) for part, own in parts]
    steps = 0
    for _ in range(STEPS):
        batch.open_step()
        wanted = whole(batch.tokens[:, None], cache=batch.caches())[:, -1]
        for (part, _), own_batch, trace in zip(parts, own_batches, traces, strict=True):
            own_batch.open_step()
            out = trace.logits(own_batch)
            steps += out is not None
            if out is None:
                out = part(own_batch.tokens[:, None], cache=own_batch.caches())[:, -1]
        assert not wire
        mx.eval(wanted, out)
        assert mx.allclose(wanted, out, atol=1e-4)
        token = mx.argmax(wanted, axis=-1).astype(mx.int32)
        for one in (batch, *own_batches):
            one.close_step(token)
    assert steps > STEPS


def test_batches_that_take_turns_are_each_as_steady_as_they_are(engine):
    model = engine("llama")._forward._model
    shape = measure(model)
    trace = CompiledDecode(model, shape.readers(packed=False))
    batches = [batch_of(model, shape, lengths) for lengths in ((5,), (6, 7))]
    traced = 0
    for _ in range(2 * STEADY_STEPS):
        for batch in batches:
            batch.open_step()
            logits = trace.logits(batch)
            traced += logits is not None
            if logits is None:
                logits = model(batch.tokens[:, None], cache=batch.caches())[:, -1]
            mx.eval(logits)
            batch.close_step(batch.tokens)
    assert traced == 2 * STEADY_STEPS
