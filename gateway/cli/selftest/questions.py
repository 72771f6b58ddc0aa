"""Talks to a node's API: asks one question in each dialect, and reads greedy tokens with the
likeliest alternatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.cli.node.node_api import NodeApi

MODEL = "shoal-tiny"
QUESTION = "list the integers from 1 to 10"
ANSWER_S = 120.0
_MESSAGES = ({"role": "user", "content": QUESTION},)


def ask_openai(api: NodeApi) -> str:
    """Return the answer in OpenAI's dialect."""
    body = {"model": MODEL, "messages": _MESSAGES, "temperature": 0, "max_tokens": 24}
    answer = api.post("/v1/chat/completions", body, timeout_s=ANSWER_S)
    return str(answer["choices"][0]["message"]["content"])


def ask_anthropic(api: NodeApi) -> str:
    """Return the answer in Anthropic's dialect."""
    body = {"model": MODEL, "messages": _MESSAGES, "temperature": 0, "max_tokens": 24}
    answer = api.post("/v1/messages", body, timeout_s=ANSWER_S)
    return "".join(str(part.get("text", "")) for part in answer["content"])


def ask_ollama(api: NodeApi) -> str:
    """Return the answer in Ollama's dialect."""
    options = {"temperature": 0, "num_predict": 24}
    body = {"model": MODEL, "messages": _MESSAGES, "stream": False, "options": options}
    return str(api.post("/api/chat", body, timeout_s=ANSWER_S)["message"]["content"])


DIALECTS: Mapping[str, Callable[[NodeApi], str]] = {
    "OpenAI": ask_openai,
    "Anthropic": ask_anthropic,
    "Ollama": ask_ollama,
}


def tokens_of(api: NodeApi, question: str, count: int) -> list[list[tuple[str, float]]]:
    """Return the greedy tokens of an answer. Each position has the chosen token, then the likeliest
    tokens, each as (text, log-probability)."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": count,
        "logprobs": True,
        "top_logprobs": 8,
    }
    answer: Any = api.post("/v1/chat/completions", body, timeout_s=ANSWER_S)
    return [
        [
            (str(step["token"]), float(step["logprob"])),
            *((str(top["token"]), float(top["logprob"])) for top in step["top_logprobs"]),
        ]
        for step in answer["choices"][0]["logprobs"]["content"]
    ]
