"""OpenAI's listing of models."""

from __future__ import annotations

import dataclasses
import json

from openai.types import Model

from gateway.dialects.dialect import LoadedCopy, ModelListing
from gateway.dialects.openai.api import render_model, render_models

AT = 1_763_640_000.0
TINY = ModelListing(
    id="shoal-tiny",
    size_bytes=8_000_000,
    modified_at_s=AT,
    digest="sha256:abc",
    family="qwen3",
    parameters=4_200_000,
    quantization="F16",
    context_tokens=4096,
    capabilities=("completion", "tools", "thinking"),
    template="{{ x }}",
    config={"num_hidden_layers": 8},
    loaded=(
        LoadedCopy(9_000_000, 8_500_000, 4096, expires_at_s=AT + 300),
        LoadedCopy(9_000_000, 0, 2048),
    ),
)


def test_openai_lists_models_in_its_own_shape() -> None:
    found = json.loads(render_models([TINY], AT))
    assert found["object"] == "list"
    model = Model.model_validate(found["data"][0], strict=True)
    assert (model.id, model.created, model.object) == ("shoal-tiny", int(AT), "model")
    assert json.loads(render_model(TINY)) == found["data"][0]
    assert found["data"][0]["context_length"] == 4096
    assert found["data"][0]["max_model_len"] == 2048, "what every loaded copy takes"
    unloaded = json.loads(render_model(dataclasses.replace(TINY, loaded=())))
    assert unloaded["max_model_len"] == 4096
    assert json.loads(render_models([], AT)) == {"object": "list", "data": []}
