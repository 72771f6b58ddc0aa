"""Anthropic's API as a table of endpoints.

Pure. A client whose base URL ends with `/v1` sends its requests to `/v1/v1/...`; those paths work,
too.
"""

from __future__ import annotations

from gateway.dialects import api_table
from gateway.dialects.anthropic.answers import (
    AnthropicAnswer,
    AnthropicError,
    AnthropicEvent,
    AnthropicModel,
    AnthropicModels,
    CountAnswer,
)
from gateway.dialects.anthropic.bodies import AnthropicCountBody, AnthropicMessagesBody
from gateway.dialects.anthropic.dialect import AnthropicCount, AnthropicMessages
from gateway.dialects.anthropic.models import render_model, render_models
from gateway.dialects.anthropic.shapes import ID_KEY, error_object

# fmt: off
ANTHROPIC = api_table.Api(
    title="Anthropic API",
    envelope=api_table.ErrorEnvelope(AnthropicError, error_object, ID_KEY),
    endpoints=(
        api_table.Generates("/v1/messages", "Create a message, streamed or not",
                            AnthropicMessages(), AnthropicMessagesBody, AnthropicAnswer,
                            AnthropicEvent),
        api_table.Generates("/v1/v1/messages",
                            "Create a message; for a base URL that ends with /v1",
                            AnthropicMessages(), AnthropicMessagesBody, AnthropicAnswer,
                            AnthropicEvent),
        api_table.ReadsPrompt("/v1/messages/count_tokens", "Count the prompt tokens of a message",
                              AnthropicCount(), AnthropicCountBody, CountAnswer),
        api_table.ReadsPrompt("/v1/v1/messages/count_tokens",
                              "Count the prompt tokens; for a base URL that ends with /v1",
                              AnthropicCount(), AnthropicCountBody, CountAnswer),
        api_table.PagesModels("/v1/models", "List the models (header anthropic-version)",
                              render_models, AnthropicModels),
        api_table.PagesModels("/v1/v1/models", "List the models; for a base URL that ends with /v1",
                              render_models, AnthropicModels),
        api_table.ShowsModel("/v1/models/{name:path}", "Get one model (header anthropic-version)",
                             render_model, AnthropicModel),
        api_table.ShowsModel("/v1/v1/models/{name:path}",
                             "Get one model; for a base URL that ends with /v1", render_model,
                             AnthropicModel),
    ),
    prefixes=("/v1/messages", "/v1/v1/messages", "/v1/v1/models"),
    id_prefixes=("msg_",),
    marked_by="anthropic-version",
    marked_prefixes=("/v1/models", "/v1/files", "/v1/organizations"),
    id_header="request-id",
)
# fmt: on
