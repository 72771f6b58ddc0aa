"""What Anthropic's clients send as messages: the closed types of blocks and of turns.

Pure. Shapes only. Clients send our own answers back with all else that they know of them; what
means nothing in a prompt is typed `Unused`, with its reason. Blocks and documents that models of
text cannot read are known here, so that the parser refuses them in words.
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
"""What an answer of the provider's has of the tools that it runs itself, and what those get."""
_PROVIDED = dict.fromkeys(get_args(ProvidedType), "~provided")

# --- content ------------------------------------------------------------------------------


class AnthropicTextBlockBody(Closed):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: Unused = no_effect("prefixes are found by their content")
    citations: Unused = no_effect("part of an earlier answer")
    parsed_output: Unused = no_effect("what the client made of the text")


class AnthropicMediaBlockBody(Closed):
    """An image, with all that it holds: refused by the parser, but in a tool's answer, where the
    model is told that it was there."""

    model_config = ConfigDict(extra="ignore")
    others: ClassVar[str] = "the whole block is refused"
    type: Literal["image"] = refused("the models read only text; send its text instead")


class AnthropicThinkingBlockBody(Closed):
    """What the assistant thought earlier."""

    type: Literal["thinking"]
    thinking: str
    signature: Unused = no_effect("shoal signs nothing; text sent back is accepted as it is")


class AnthropicRedactedBlockBody(Closed):
    """Thinking that only its maker can read; dropped."""

    type: Literal["redacted_thinking"]
    data: Unused = no_effect("only its provider can read it")


class AnthropicProvidedBlockBody(Closed):
    """What the provider's own tools were asked and answered: dropped, and named as ignored. What
    the assistant made of it stands beside it."""

    model_config = ConfigDict(extra="ignore")
    others: ClassVar[str] = "the block is dropped"
    type: ProvidedType


class AnthropicToolUseBody(Closed):
    """A call that the assistant made."""

    type: Literal["tool_use"]
    id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    input: dict[str, Any]
    cache_control: Unused = no_effect("prefixes are found by their content")
    caller: Unused = no_effect("only the model calls tools here")
    toolset_name: Unused = no_effect("of the provider's own tools")


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
    media_type: Unused = no_effect("text is read as sent")


class AnthropicBlocksSourceBody(Closed):
    """The text of a document, in pieces."""

    type: Literal["content"]
    content: Content[AnthropicTextBlockBody]


class AnthropicUnreadSourceBody(Closed):
    """A document that is no text, or that lies elsewhere: refused by the parser, but in a tool's
    answer, where the model is told that it was there."""

    model_config = ConfigDict(extra="ignore")
    others: ClassVar[str] = "the whole document is refused"
    type: Literal["base64", "url", "file"] = refused(
        "the models read only text; send its text instead"
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
    cache_control: Unused = no_effect("prefixes are cached by their content")


class AnthropicSearchResultBlockBody(Closed):
    """What a search of the client's has found; the model reads all of it."""

    type: Literal["search_result"]
    source: str
    title: str
    content: list[AnthropicTextBlockBody]
    citations: Unused = no_effect("answers have no citations")
    cache_control: Unused = no_effect("prefixes are cached by their content")


_Text = Annotated[AnthropicTextBlockBody, Tag("~text")]
_Media = (
    Annotated[AnthropicMediaBlockBody, Tag("~image")]
    | Annotated[AnthropicDocumentBlockBody, Tag("~document")]
    | Annotated[AnthropicSearchResultBlockBody, Tag("~search_result")]
)

# --- what tools answered ------------------------------------------------------------------


class AnthropicToolReferenceBody(Closed):
    """A tool that a search for tools has found; it stands among the request's tools, too."""

    type: Literal["tool_reference"]
    tool_name: str = Field(min_length=1)
    cache_control: Unused = no_effect("prefixes are cached by their content")


ResultBlock = Annotated[
    _Text | _Media | Annotated[AnthropicToolReferenceBody, Tag("~tool_reference")],
    by_field("type", "text", "image", "document", "search_result", "tool_reference"),
]


class AnthropicToolResultBody(Closed):
    """What a tool answered; nothing at all is an answer too."""

    type: Literal["tool_result"]
    tool_use_id: str = Field(min_length=1)
    content: Content[ResultBlock] | None = None
    is_error: bool | None = None
    cache_control: Unused = no_effect("prefixes are cached by their content")
    toolset_name: Unused = no_effect("about the provider's server tools")


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
    """What the user says, and what the tools answered."""

    role: Literal["user"]
    content: Content[UserBlock]
    cache_control: Unused = no_effect("prefixes are cached by their content")


class AnthropicAssistantMessageBody(Closed):
    """What the assistant said, as clients send our own answers back."""

    role: Literal["assistant"]
    content: Content[AssistantBlock]
    cache_control: Unused = no_effect("prefixes are cached by their content")


class AnthropicSystemMessageBody(Closed):
    """What the model is told about its task in the middle of a conversation."""

    role: Literal["system"]
    content: Content[AnthropicTextBlockBody]
    cache_control: Unused = no_effect("prefixes are cached by their content")


AnthropicMessageBody = Annotated[
    Annotated[AnthropicUserMessageBody, Tag("~user")]
    | Annotated[AnthropicAssistantMessageBody, Tag("~assistant")]
    | Annotated[AnthropicSystemMessageBody, Tag("~system")],
    by_field("role", "user", "assistant", "system"),
]
