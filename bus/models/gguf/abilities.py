"""The table of llama-server's abilities. shoal serves a request that needs one, or refuses it and
names the field.

Pure. The runner refuses by this table, and `shoal show` prints it. Fields are those of a
`GenerationRequest`, in the words of OpenAI's API.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.wire.cards import ModelCard
from bus.wire.messages.requests import GenerationRequest

ENGINE, MLX = "llama-server", "MLX"
DTYPE = "gguf"
"""The number type in a model's card if its weights stay as a GGUF file stores them."""
LLAMA_TAG = "llamacpp-"
"""The beginning of the tags of backends that run GGUF files."""
HOW_TO_ADD = (
    "the extra shoal-llm[llamacpp], or llama-server on PATH, or the setting runner.llama_server"
)
"""The ways to install llama-server, for messages."""


@dataclass(frozen=True, slots=True)
class EngineAbility:
    """One ability of an engine. `done` False: a request that needs it is refused, and the refusal
    names `field`. `note` says what is different from the engine MLX."""

    name: str
    field: str
    done: bool
    note: str = ""


ABILITIES = (
    EngineAbility("chat, thinking and tool calls", "messages", done=True),
    EngineAbility("raw prompts and token ids", "prompt", done=True),
    EngineAbility("several choices", "n", done=True),
    EngineAbility("stop strings", "stop", done=True),
    EngineAbility("temperature, top_k, top_p, min_p", "temperature", done=True),
    EngineAbility(
        "seeds", "seed", done=True, note="other requests in the same batch may change the text"
    ),
    EngineAbility("repetition penalty", "repetition_penalty", done=True),
    EngineAbility("frequency penalty", "frequency_penalty", done=True),
    EngineAbility("presence penalty", "presence_penalty", done=True),
    EngineAbility("logit bias", "logit_bias", done=True),
    EngineAbility("prefix cache", "prompt", done=True),
    EngineAbility("response formats and grammars", "response_format", done=True),
    EngineAbility("strict tools", "tools", done=True),
    EngineAbility("required tool calls", "tool_choice", done=True),
    EngineAbility("log-probabilities", "logprobs", done=True),
    EngineAbility("thinking budgets", "thinking_budget", done=True),
    EngineAbility("minimum lengths", "min_tokens", done=True),
    EngineAbility("ignoring end tokens", "ignore_eos", done=True),
    EngineAbility("token ids of earlier answers", "history", done=True),
    EngineAbility("embeddings, by an embedding model", "input", done=True),
    EngineAbility("ranking documents, by a reranker", "documents", done=True),
    EngineAbility(
        "a frequency or presence penalty together with a repetition penalty",
        "repetition_penalty",
        done=False,
        note=f"{ENGINE} applies both to the same tokens; shoal applies the first only to those of "
        "the answer",
    ),
    EngineAbility(
        "a logit bias together with a repetition penalty",
        "logit_bias",
        done=False,
        note=f"{ENGINE} adds the bias before the penalty; shoal adds it after",
    ),
    EngineAbility("log-probabilities of prompts", "prompt_logprobs", done=False),
    EngineAbility("LoRA adapters", "model", done=False),
    EngineAbility("named drafters", "x_speculate", done=False, note="use auto or off"),
)
"""The abilities of llama-server as shoal uses it."""


def engine_of(card: ModelCard) -> str:
    """Return the name of the engine that runs a model."""
    if card.origin == "engine":
        return "a program of engines.toml"
    return ENGINE if card.dtype == DTYPE else MLX


def missing_ability(request: GenerationRequest) -> EngineAbility | None:
    """Return the first ability that a request needs and llama-server lacks; None if it has all."""
    sampling = request.sampling
    repeats = sampling.repetition_penalty != 1.0
    counts = sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0
    needed = {
        "repetition_penalty": repeats and counts,
        "logit_bias": repeats and bool(sampling.logit_bias),
        "prompt_logprobs": request.prompt_logprobs is not None,
        "model": request.adapter is not None,
        "x_speculate": request.speculate not in (None, "auto", "off"),
    }
    lacking = (each for each in ABILITIES if not each.done)
    return next((each for each in lacking if needed[each.field]), None)
