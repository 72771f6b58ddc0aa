"""Lists of models, which clients poll: what they cost."""

from __future__ import annotations

import cProfile
import pstats
from types import SimpleNamespace
from typing import Any, cast

from bus.replica.state import ClusterState
from bus.wire.cards import ModelCard, NodeCard
from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.derived import DerivedModel
from bus.wire.messages.readings import CardReading
from gateway.dialects.ollama.api import render_tags
from gateway.dialects.openai.api import render_models
from gateway.http.resources import models
from gateway.requests.catalog import ModelCatalog
from gateway.view.readings import ClusterReadings

NODE = NodeId("n1")
CALLS_PER_NAME = 60


def _card(number: int) -> ModelCard:
    return ModelCard(
        model=ModelId(f"org/model-{number}"),
        path="/nowhere",
        family="qwen3",
        layers=2,
        weights_bytes=1,
        size_bytes=1,
        kv_bytes_per_token=1,
        context_tokens=4096,
        vocabulary=2048,
        digest="ab" * 32,
        capabilities=("completion", "tools"),
        aliases=(f"alias-{number}",),
    )


def _facades() -> Any:
    """What lists are made of: twelve models with an alias each, four derived ones."""
    node = NodeCard(
        node=NODE,
        name="n",
        platform="linux",
        cores=2,
        memory_bytes=10**9,
        backends=("mlx-cpu",),
        mlx_version="0",
        shoal_version="0",
        slots=1,
        models=tuple(map(_card, range(12))),
        announced_at_s=1.0,
    )
    readings = ClusterReadings()
    readings.heard(CardReading(card=node), 0.0)
    derived = {
        f"made-{n}": DerivedModel(
            name=ModelId(f"made-{n}"), base=ModelId(f"org/model-{n}"), system="s", made_at_s=1.0
        )
        for n in range(4)
    }
    bus = SimpleNamespace(
        reactor=SimpleNamespace(now=lambda: 1.0),
        state=ClusterState(derived=derived),
        speaker=SimpleNamespace(node=NODE),
    )
    catalog = ModelCatalog(cast(Any, bus), readings, cast(Any, None))
    tasks = SimpleNamespace(table=None)
    return SimpleNamespace(
        bus=bus, reactor=bus.reactor, catalog=catalog, readings=readings, tasks=tasks
    )


def test_a_list_of_models_costs_few_calls_for_each_name() -> None:
    made, asked = _facades(), cast(Any, SimpleNamespace())
    listed = models.listings(made, made, asked)
    assert len(listed) == 28
    with cProfile.Profile() as profile:
        render_models(models.listings(made, made, asked), 0.0)
    calls = cast(Any, pstats.Stats(profile)).total_calls
    print(f"{calls} calls for {len(listed)} names")
    assert calls <= CALLS_PER_NAME * len(listed)


def test_a_list_tells_what_each_model_can_and_an_alias_has_its_models_digest() -> None:
    made = _facades()
    listed = {one.id: one for one in models.listings(made, made, cast(Any, SimpleNamespace()))}
    assert listed["alias-3"].digest == listed["org/model-3"].digest != listed["made-3"].digest
    assert b'"capabilities":["completion","tools"]' in render_tags(list(listed.values()), 0.0)
