"""Types of the messages that Anthropic's clients send: blocks and turns, with fixed fields.

Pure. This module has only types. Clients send earlier answers of shoal back as messages, with
fields that only answers need. Such a field has the type `Unused`, with the reason why it has no
effect. Blocks and documents that text models cannot read have types too, so that the parser can
refuse them with a message.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import ConfigDict, Field, Tag

from gateway.dialects.body import Closed, Unused, by_field, by_type, no_effect, refused

ProvidedType = Literal[
    "server_tool_use",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "advisor_tool_result",
    "mcp_tool_use",
    "mcp_tool_result",
    "container_upload",
]
"""Types of the blocks that belong to Anthropic's server tools: their calls and their results."""
_PROVIDED = dict.fromkeys(get_args(ProvidedType), "~provided")

# --- content ------------------------------------------------------------------------------


class AnthropicTextBlockBody(Closed):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: Unused = no_effect("prefixes are cached automatically")
    citations: Unused = no_effect("part of an earlier answer")
    parsed_output: Unused = no_effect("the client's own parse of the text")


class AnthropicMediaBlockBody(Closed):
    """An image, with all its fields. The parser refuses an image in a turn. In a tool's result the
    image is accepted, and the model reads a note in its place."""

    model_config = ConfigDict(extra="ignore")
    others: ClassVar[str] = "an image is refused, whatever its fields"
    type: Literal["image"] = refused("the models read only text; send the content as text")


class AnthropicThinkingBlockBody(Closed):
    """Earlier thinking of the assistant."""

    type: Literal["thinking"]
    thinking: str
    signature: Unused = no_effect("shoal does not sign thinking, and accepts it without a check")


class AnthropicRedactedBlockBody(Closed):
    """Thinking that only the provider can read. It is dropped."""

    type: Literal["redacted_thinking"]
    data: Unused = no_effect("only the provider that made it can read it")


class AnthropicProvidedBlockBody(Closed):
    """A call or a result of the provider's server tools. It is dropped and reported as ignored. The
    assistant's own text is in other blocks of the same message."""

    model_config = ConfigDict(extra="ignore")
    others: ClassVar[str] = "the block is dropped"
    type: ProvidedType


class AnthropicToolUseBody(Closed):
    """A tool call by the assistant."""

    type: Literal["tool_use"]
    id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    input: dict[str, Any]
    cache_control: Unused = no_effect("prefixes are cached automatically")
    caller: Unused = no_effect("in shoal, only the model calls tools")
    toolset_name: Unused = no_effect("concerns tools that the provider runs")


Block = TypeVar("Block")
Content = Annotated[
    Annotated[str, Tag("~text")] | Annotated[list[Block], Tag("~blocks")],
    by_type("a string or a list of blocks", {str: "~text", list: "~blocks"}),
]

# --- documents ----------------------------------------------------------------------------


class AnthropicPlainSourceBody(Closed):
    """The text of a document."""

    type: Literal["text"]
    data: str
    media_type: Unused = no_effect("the text is used unchanged")


class AnthropicBlocksSourceBody(Closed):
    """The text of a document, in blocks."""

    type: Literal["content"]
    content: Content[AnthropicTextBlockBody]


class AnthropicUnreadSourceBody(Closed):
    """A document that is not text, or only a link. The parser refuses it in a turn. In a tool's
    result the document is accepted, and the model reads a note in its place."""

    model_config = ConfigDict(extra="ignore")
    others: ClassVar[str] = "a document is refused, whatever its fields"
    type: Literal["base64", "url", "file"] = refused(
        "the models read only text; send the content as text"
    )


SourceBody = Annotated[
    Annotated[AnthropicPlainSourceBody, Tag("~text")]
    | Annotated[AnthropicBlocksSourceBody, Tag("~content")]
    | Annotated[AnthropicUnreadSourceBody, Tag("~unread")],
    by_field(
        *("type", "text", "content"), also=dict.fromkeys(("base64", "url", "file"), "~unread")
    ),
]


class AnthropicDocumentBlockBody(Closed):
    """A document; the model reads its title, its context and its text."""

    type: Literal["document"]
    source: SourceBody
    title: str | None = None
    context: str | None = None
    citations: Unused = no_effect("answers have no citations")
    cache_control: Unused = no_effect("prefixes are cached automatically")


class AnthropicSearchResultBlockBody(Closed):
    """A result of the client's search; the model reads the whole result."""

    type: Literal["search_result"]
    source: str
    title: str
    content: list[AnthropicTextBlockBody]
    citations: Unused = no_effect("answers have no citations")
    cache_control: Unused = no_effect("prefixes are cached automatically")


_Text = Annotated[AnthropicTextBlockBody, Tag("~text")]
_Media = (
    Annotated[AnthropicMediaBlockBody, Tag("~image")]
    | Annotated[AnthropicDocumentBlockBody, Tag("~document")]
    | Annotated[AnthropicSearchResultBlockBody, Tag("~search_result")]
)

# --- tool results -------------------------------------------------------------------------


class AnthropicToolReferenceBody(Closed):
    """A reference to a tool that a tool search found. The request's tools include that tool."""

    type: Literal["tool_reference"]
    tool_name: str = Field(min_length=1)
    cache_control: Unused = no_effect("prefixes are cached automatically")


ResultBlock = Annotated[
    _Text | _Media | Annotated[AnthropicToolReferenceBody, Tag("~tool_reference")],
    by_field("type", "text", "image", "document", "search_result", "tool_reference"),
]


class AnthropicToolResultBody(Closed):
    """A tool's result; it may be empty."""

    type: Literal["tool_result"]
    tool_use_id: str = Field(min_length=1)
    content: Content[ResultBlock] | None = None
    is_error: bool | None = None
    cache_control: Unused = no_effect("prefixes are cached automatically")
    toolset_name: Unused = no_effect("concerns tools that the provider runs")


UserBlock = Annotated[
    _Text
    | _Media
    | Annotated[AnthropicToolResultBody, Tag("~tool_result")]
    | Annotated[AnthropicProvidedBlockBody, Tag("~provided")],
    by_field(
        *("type", "text", "tool_result", "image", "document", "search_result"),
        also=_PROVIDED,
    ),
]
AssistantBlock = Annotated[
    _Text
    | Annotated[AnthropicThinkingBlockBody, Tag("~thinking")]
    | Annotated[AnthropicRedactedBlockBody, Tag("~redacted_thinking")]
    | Annotated[AnthropicToolUseBody, Tag("~tool_use")]
    | Annotated[AnthropicProvidedBlockBody, Tag("~provided")],
    by_field(
        *("type", "text", "thinking", "redacted_thinking", "tool_use"),
        also=_PROVIDED,
    ),
]

# --- turns --------------------------------------------------------------------------------


class AnthropicUserMessageBody(Closed):
    """A turn of the user: text and tool results."""

    role: Literal["user"]
    content: Content[UserBlock]
    cache_control: Unused = no_effect("prefixes are cached automatically")


class AnthropicAssistantMessageBody(Closed):
    """A turn of the assistant: an earlier answer that the client sends back."""

    role: Literal["assistant"]
    content: Content[AssistantBlock]
    cache_control: Unused = no_effect("prefixes are cached automatically")


class AnthropicSystemMessageBody(Closed):
    """Instructions to the model in the middle of a conversation."""

    role: Literal["system"]
    content: Content[AnthropicTextBlockBody]
    cache_control: Unused = no_effect("prefixes are cached automatically")


AnthropicMessageBody = Annotated[
    Annotated[AnthropicUserMessageBody, Tag("~user")]
    | Annotated[AnthropicAssistantMessageBody, Tag("~assistant")]
    | Annotated[AnthropicSystemMessageBody, Tag("~system")],
    by_field("role", "user", "assistant", "system"),
]
