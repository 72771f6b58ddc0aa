"""OpenAI's API as a table of endpoints, and its list of models.

Pure. Unknown properties of a model are omitted or 0, never invented.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from gateway.dialects import api_table, sse
from gateway.dialects.encode import json_bytes
from gateway.dialects.openai import answers
from gateway.dialects.openai.bodies import ChatCompletionsBody, CompletionsBody
from gateway.dialects.openai.chat import OpenAIChat
from gateway.dialects.openai.completions import OpenAICompletions
from gateway.dialects.openai.embeddings import EmbeddingsBody, OpenAIEmbeddings
from gateway.dialects.openai.responses import (
    CONVERSATION_PREFIX,
    ConversationBody,
    ConversationItemsBody,
    ConversationTold,
    InputTokensAnswer,
    OpenAIInputTokens,
    OpenAIResponses,
    RemovedConversation,
    RemovedResponse,
    ResponseAnswer,
    ResponseEvent,
    ResponsesBody,
    ResponsesCountBody,
    as_it_stands,
    is_made,
    item_named,
    last_event,
    read_conversation,
    read_conversation_items,
    read_conversation_page,
    render_conversation,
    render_conversation_item,
    render_conversation_items,
    render_conversation_removed,
    render_deleted,
    render_items,
    replayed,
    with_named,
)
from gateway.dialects.openai.shapes import error_object
from gateway.dialects.openai.stored import (
    StoredLabelsBody,
    read_labels,
    render_list,
    render_messages,
    render_removed,
    render_stored,
    stored_page,
)

OWNER = "shoal"
_Endpoint = TypeVar("_Endpoint", bound=api_table.Endpoint)


def render_models(listings: Sequence[api_table.ModelListing], _now_s: float) -> bytes:
    """Return the answer to `GET /v1/models`."""
    models: answers.OpenAIModels = {
        "object": "list",
        "data": [_model_object(listing) for listing in listings],
    }
    return json_bytes(models)


def render_model(listing: api_table.ModelListing) -> bytes:
    """Return the answer to `GET /v1/models/{id}`."""
    return json_bytes(_model_object(listing))


def _model_object(listing: api_table.ModelListing) -> answers.OpenAIModel:
    # the smallest of its instances, since any of them may answer; without one, the model's own
    smallest = min((item.context_tokens for item in listing.loaded), default=listing.context_tokens)
    return {
        "id": listing.id,
        "object": "model",
        "created": int(listing.modified_at_s),
        "owned_by": OWNER,
        # other servers' names for the served context and the model's own; clients limit their
        # prompts by them
        "max_model_len": smallest,
        "context_length": listing.context_tokens,
        "capabilities": list(listing.capabilities),
        "loaded": bool(listing.loaded),
    }


CONVERSATIONS = api_table.ConversationShapes(
    begun=read_conversation,
    added=read_conversation_items,
    item_named=item_named,
    resolved=with_named,
    labels=read_labels,
    page=read_conversation_page,
    conversation=render_conversation,
    removed=render_conversation_removed,
    items=render_conversation_items,
    item=render_conversation_item,
)
_KEPT_CHATS = api_table.KeptShapes(
    answer=answers.StoredChat,
    deleted=answers.RemovedChat,
    items=answers.ItemList,
    listing=answers.StoredChats,
)
_KEPT_RESPONSES = api_table.KeptShapes(
    answer=ResponseAnswer,
    deleted=RemovedResponse,
    items=answers.ItemList,
    event=ResponseEvent,
)


def _without_v1(endpoint: _Endpoint) -> _Endpoint:
    """Return the same endpoint at a path without /v1."""
    path = endpoint.path.removeprefix("/v1")
    return replace(endpoint, path=path, summary=f"{endpoint.summary}; for a base URL without /v1")


# fmt: off
_GENERATES = (
    api_table.Generates("/v1/chat/completions", "Create a chat completion, streamed or not",
                        OpenAIChat(), ChatCompletionsBody,
                        answers.ChatAnswer, answers.ChatChunk, sse.LAST),
    api_table.Generates("/v1/completions", "Create a text completion, streamed or not",
                        OpenAICompletions(), CompletionsBody,
                        answers.CompletionAnswer, answers.CompletionChunk, sse.LAST),
    api_table.Generates("/v1/responses", "Create a response, streamed or not",
                        OpenAIResponses(), ResponsesBody, ResponseAnswer, ResponseEvent),
)
_EMBEDS = api_table.Embeds("/v1/embeddings", (
    "Create embeddings of "
    "texts"
    ), OpenAIEmbeddings(), EmbeddingsBody,
                           answers.EmbeddingsAnswer)
OPENAI = api_table.Api(
    title="OpenAI API",
    envelope=api_table.ErrorEnvelope(answers.Error, error_object),
    endpoints=(
        *_GENERATES,
        *map(_without_v1, _GENERATES),
        api_table.ReadsPrompt("/v1/responses/input_tokens",
                              "Count the prompt tokens of a response",
                              OpenAIInputTokens(), ResponsesCountBody, InputTokensAnswer),
        _EMBEDS,
        _without_v1(_EMBEDS),
        api_table.KeepsAnswers("/v1/responses", "stored response", "Response",
                               render_items, render_deleted, shown=_KEPT_RESPONSES,
                               replayed=replayed,
                               background=api_table.MadeInBackground(as_it_stands, is_made,
                                                                     last_event)),
        api_table.KeepsListed("/v1/chat/completions", "stored chat completion",
                              "Chat completion", render_messages, render_removed,
                              shown=_KEPT_CHATS, answer=render_stored, items_at="messages",
                              query=stored_page, listing=render_list, labels=read_labels,
                              body=StoredLabelsBody),
        api_table.KeepsConversations("/v1/conversations", "conversation", CONVERSATIONS,
                                     ConversationBody, StoredLabelsBody, ConversationItemsBody,
                                     ConversationTold, RemovedConversation, answers.ItemList),
        api_table.ListsModels("/v1/models", "List the models", render_models,
                              answers.OpenAIModels),
        api_table.ListsModels("/models", "List the models", render_models,
                              answers.OpenAIModels),
        api_table.ShowsModel("/v1/models/{name:path}", "Get one model", render_model,
                             answers.OpenAIModel),
    ),
    id_prefixes=("chatcmpl-", "cmpl-", "embd-", "resp_", CONVERSATION_PREFIX),
)
# fmt: on
