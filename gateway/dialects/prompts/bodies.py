"""Types of the bodies that ask about a prompt: for its tokens, for the text of tokens, or for a
conversation as the template renders it.

Pure. The fields are those of vLLM's and llama.cpp's servers; some fields of the two mean the same.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from gateway.dialects.body import Closed, FieldTable, only
from gateway.dialects.openai.bodies import TemplateArgumentsBody, ToolBody
from gateway.dialects.openai.messages import MessageBody, VocabularyIndex

OWN_TEMPLATE = "omit it; a model's own template is used"
PIECES = "omit it; /detokenize returns the text of tokens"
REFUSED_CHAT = {
    "chat_template": OWN_TEMPLATE,
    "chat_template_content_format": OWN_TEMPLATE,
    "documents": "omit it; put the text into a message",
    "response_format": "omit it; a template does not show it",
    "mm_processor_kwargs": "omit it; models here read text only",
}
REFUSED_TOKENIZE = {**REFUSED_CHAT, "return_token_strs": PIECES, "with_pieces": PIECES}
"""Unsupported fields, each with advice; empty and false values request nothing."""


class AskedModelBody(Closed):
    """The model that the body names. The name may be missing if the cluster has only one model."""

    model: str | None = None


class ConversationBody(AskedModelBody):
    """A conversation, with those fields of a chat completion that a chat template uses."""

    table: ClassVar[FieldTable] = FieldTable(refused=REFUSED_CHAT, empty_asks_nothing=True)
    messages: Annotated[list[MessageBody], Field(min_length=1, fail_fast=True)] | None = None
    tools: Annotated[list[ToolBody], Field(fail_fast=True)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateArgumentsBody | None = None


class TokenizeBody(ConversationBody):
    """The body of `POST /tokenize`: a text (`prompt`, or `content`) or a conversation."""

    table: ClassVar[FieldTable] = FieldTable(refused=REFUSED_TOKENIZE, empty_asks_nothing=True)
    prompt: str | None = None
    content: str | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    parse_special: bool | None = only(True, why="names of special tokens are always read as such")


class DetokenizeBody(AskedModelBody):
    """The body of `POST /detokenize`."""

    tokens: Annotated[list[VocabularyIndex], Field(fail_fast=True)]


class ApplyTemplateBody(ConversationBody):
    """The body of `POST /apply-template`."""
