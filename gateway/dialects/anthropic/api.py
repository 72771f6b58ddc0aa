"""Anthropic's API as a table.

Pure. Clients that were given a base URL with `/v1` at its end say it twice; they are answered.
"""

from __future__ import annotations

from gateway.dialects import dialect
from gateway.dialects.anthropic.bodies import AnthropicCountBody, AnthropicMessagesBody
from gateway.dialects.anthropic.dialect import AnthropicCount, AnthropicMessages
from gateway.dialects.anthropic.models import render_model, render_models
from gateway.dialects.anthropic.shapes import ERROR_SCHEMA, ID_KEY, error_object

# fmt: off
ANTHROPIC = dialect.Api(
    title="Anthropic API",
    envelope=dialect.ErrorEnvelope("AnthropicError", ERROR_SCHEMA, error_object, ID_KEY),
    endpoints=(
        dialect.Generates("/v1/messages", "A message, whole or streamed",
                          AnthropicMessages(), AnthropicMessagesBody),
        dialect.Generates("/v1/v1/messages", "The same, for a base URL that ends with /v1",
                          AnthropicMessages(), AnthropicMessagesBody),
        dialect.ReadsPrompt("/v1/messages/count_tokens", "How many tokens a message's prompt has",
                            AnthropicCount(), AnthropicCountBody),
        dialect.ReadsPrompt("/v1/v1/messages/count_tokens",
                            "The same, for a base URL that ends with /v1",
                            AnthropicCount(), AnthropicCountBody),
        dialect.PagesModels("/v1/models", "Models that are here, with the header anthropic-version",
                            render_models),
        dialect.PagesModels("/v1/v1/models", "The same, for a base URL that ends with /v1",
                            render_models),
        dialect.ShowsModel("/v1/models/{name:path}", "One model, with the header anthropic-version",
                           render_model),
        dialect.ShowsModel("/v1/v1/models/{name:path}",
                           "The same, for a base URL that ends with /v1", render_model),
    ),
    prefixes=("/v1/messages", "/v1/v1/messages", "/v1/v1/models"),
    id_prefixes=("msg_",),
    marked_by="anthropic-version",
    marked_prefixes=("/v1/models",),
    id_header="request-id",
)
# fmt: on
