"""What `engines.toml` may say, and what is wrong with it, by its line."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.models.tasks import CommandEngine, read_engines
from bus.models.tasks.engines import USUAL_FIELDS, Extra
from bus.translation import EXTRA_FIELDS
from bus.wire.errors import ConfigError

GOOD = """\
[engines.qwen]
command = "vllm serve {model} --port {port} --max-model-len {context} --api-key {key}"
model = "Qwen/Qwen3-8B"
memory_bytes = 20_000_000_000
context_tokens = 32_768
gpus = [0, 1]
"""


def test_five_lines_are_an_engine() -> None:
    engine = read_engines(GOOD).engines["qwen"]
    assert (engine.context_tokens, engine.gpus, engine.dialect) == (32_768, (0, 1), "openai")
    assert (engine.health, engine.stop_signal, engine.fields) == ("/health", "TERM", USUAL_FIELDS)
    words, variables = engine.fill({"model": engine.model, "port": "8", "context": "9"})
    assert words[:4] == ["vllm", "serve", "Qwen/Qwen3-8B", "--port"] and words[-1] == "{key}"
    assert variables == {}


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_value_is_one_word_whatever_it_has(model: str, value: str) -> None:
    engine = CommandEngine(
        command="serve {model} --port {port} '{\"a\": 1}'",
        memory_bytes=1,
        environment={"NAME": "x{model}"},
    )
    words, variables = engine.fill({"model": model, "port": value})
    assert words == ["serve", model, "--port", value, '{"a": 1}']
    assert variables == {"NAME": f"x{model}"}
    assert len(words) == len(shlex.split(engine.command))


@pytest.mark.parametrize(
    ("line", "change", "words"),
    [
        (2, ('"vllm serve {model}', '"vllm serve {modle}'), "{modle} is not known; use {capacity}"),
        (2, ("--port {port}", ""), "must have {port}"),
        (2, ("vllm serve", "vllm 'serve"), "cannot be split into words"),
        (4, ("20_000_000_000", "0"), "memory_bytes"),
        (5, ("32_768", "true"), "context_tokens"),
        (6, ("[0, 1]", "[-1]"), "gpus"),
        (6, ("gpus", "gpu"), "gpus"),
        (6, ("gpus = [0, 1]", 'dialect = "ollama"'), "dialect"),
        (6, ("gpus = [0, 1]", 'health = "health"'), "health"),
        (6, ("gpus = [0, 1]", 'environment = { "A=B" = "c" }'), "not the name of a variable"),
        (1, ("gpus = [0, 1]", 'environment = { A = "{gpus}" }'), "needs the numbers of GPUs"),
        (6, ("gpus = [0, 1]", 'fields = ["topk"]'), "fields"),
        (6, ("gpus = [0, 1]", "stall_s = 0.0"), "stall_s"),
        (1, ("[engines.qwen]", '[engines."a b"]'), "not a valid model name"),
        (1, ("[engines.qwen]", "[engine.qwen]"), "engines"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(
    line: int, change: tuple[str, str], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_engines(GOOD.replace(*change))
    said = str(caught.value)
    assert said.startswith(f"engines.toml, line {line}: ") and words in said, said


def test_each_field_can_be_translated() -> None:
    assert set(Extra.__args__) <= EXTRA_FIELDS
