"""The server that a request is translated for: its API, and the fields that it supports. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ServerKind = Literal["openai", "anthropic"]
"""The API of a server: OpenAI's chat completions, or Anthropic's messages."""
TEMPLATE_FIELD = "chat_template_kwargs"
BUDGET_FIELD = "thinking_token_budget"
IDS_FIELD = "return_token_ids"
REASONING = "messages.reasoning"
"""The name of earlier thinking in lists of fields. Providers do not support this field: they accept
only thinking that they signed themselves, or no thinking at all."""
EXTRA_FIELDS = frozenset(
    ("top_k", "min_p", "repetition_penalty", "logit_bias", "ignore_eos", "min_tokens",
     TEMPLATE_FIELD, BUDGET_FIELD, IDS_FIELD, REASONING)
)  # fmt: skip
"""The fields that are sent only to servers that support them, by their names in vLLM's API."""


@dataclass(frozen=True, slots=True)
class Target:
    """The server that a request is translated for, and its model.

    `model`: the server's name of the model, or of the adapter to compute with. `name`: the server
    in messages, as the subject of a sentence ("the provider 'cloud'"). `takes`: the fields of
    `EXTRA_FIELDS` that the server supports. `limit_name`: its field for the most tokens of a chat.

    `completes`: the server is an engine of this cluster with vLLM's API. It takes raw prompts,
    log-probabilities, regular expressions, choices and grammars, and it can continue an assistant's
    turn. `thinking_variable`: the variable of its model's template that turns thinking on or off.

    Raises ValueError for a field that is not in `EXTRA_FIELDS`, and for a server of Anthropic's
    kind that has `takes` or `completes`.
    """

    model: str
    kind: ServerKind
    name: str
    takes: frozenset[str] = frozenset()
    limit_name: str = "max_tokens"
    completes: bool = False
    thinking_variable: str = "enable_thinking"

    def __post_init__(self) -> None:
        if unknown := self.takes - EXTRA_FIELDS:
            raise ValueError(f"takes: {sorted(unknown)} cannot be sent to a server")
        if self.kind == "anthropic" and (self.takes or self.completes):
            raise ValueError("takes and completes are for servers with OpenAI's API")
