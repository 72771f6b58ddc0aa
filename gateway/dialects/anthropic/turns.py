"""Anthropic's conversation as turns: a message of many blocks becomes one turn or several.

Pure. A tool's result is a turn of its own, and text before or after the result keeps its place in
the order. Earlier thinking becomes part of the assistant's turn, as in every dialect; redacted
thinking is dropped. The model reads text documents and search results after their title. Images and
other documents are refused, and the error names their path. In a tool's result they are accepted,
since the client cannot change that result: the model reads a note instead (`unseen_of`). Calls and
results of the provider's server tools are dropped (`provided_in`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import ChatMessage, TextPart, ToolCall
from gateway.dialects.anthropic import blocks
from gateway.dialects.body import bad_field
from gateway.dialects.encode import json_bytes
from gateway.dialects.shared_fields import TEXT_ONLY, unseen

BILLING = "x-anthropic-billing-header:"
"""The start of a line that a client puts before its system prompt for the provider's billing. The
line is removed. It changes with each prompt, so with it no cached prefix would match."""
PROVIDED = "about server tools of the provider; no model reads it"
"""Why blocks of server tools are dropped."""
FAILED = "Error:"
"""The text that precedes the result of a failed tool call."""


def turns_of(
    system: str | Sequence[blocks.AnthropicTextBlockBody] | None,
    messages: Sequence[blocks.AnthropicMessageBody],
) -> tuple[ChatMessage, ...]:
    """Return the conversation, the system prompt first. Raises BadRequest naming a block that is
    not text, or an empty user turn."""
    turns = list(_system_of(system))
    for index, message in enumerate(messages):
        field = f"messages[{index}].content"
        match message:
            case blocks.AnthropicUserMessageBody():
                turns += _user_turns(message.content, field)
            case blocks.AnthropicAssistantMessageBody():
                turns += _assistant_turns(message.content)
            case blocks.AnthropicSystemMessageBody():
                turns.append(ChatMessage(role="system", parts=_texts_of(message.content)))
    return tuple(turns)


def _system_of(system: str | Sequence[blocks.AnthropicTextBlockBody] | None) -> list[ChatMessage]:
    """Return the system prompt as a turn, without the billing line. If the prompt is empty, return
    no turn."""
    parts = _texts_of(system or ())
    if parts and parts[0].text.startswith(BILLING):
        _, _, rest = parts[0].text.partition("\n")
        parts = (TextPart(text=rest), *parts[1:]) if rest.strip() else parts[1:]
    return [ChatMessage(role="system", parts=parts)] if parts else []


def _user_turns(content: str | Sequence[blocks.UserBlock], field: str) -> Iterator[ChatMessage]:
    if isinstance(content, str):
        yield ChatMessage(role="user", parts=_texts_of(content))
        return
    if not content:
        raise bad_field(field, "must have at least one block")
    texts: list[TextPart] = []
    for index, block in enumerate(content):
        where = f"{field}[{index}]"
        match block:
            case blocks.AnthropicTextBlockBody():
                texts.append(TextPart(text=block.text))
            case blocks.AnthropicToolResultBody():
                if texts:
                    yield ChatMessage(role="user", parts=tuple(texts))
                    texts = []
                yield _tool_turn(block)
            case blocks.AnthropicProvidedBlockBody():
                pass
            case _:
                text = _read(block)
                if text is None:
                    raise _no_text(block, where)
                texts.append(text)
    if texts:
        yield ChatMessage(role="user", parts=tuple(texts))


def _tool_turn(block: blocks.AnthropicToolResultBody) -> ChatMessage:
    content = block.content if block.content is not None else ""
    texts: list[TextPart] = [TextPart(text=FAILED)] if block.is_error else []
    if isinstance(content, str):
        texts.append(TextPart(text=content))
    else:
        texts += map(_result_text, content)
    parts = tuple(texts) or (TextPart(text=""),)
    return ChatMessage(role="tool", parts=parts, tool_call_id=block.tool_use_id)


def _result_text(block: blocks.ResultBlock) -> TextPart:
    match block:
        case blocks.AnthropicTextBlockBody():
            return TextPart(text=block.text)
        case blocks.AnthropicToolReferenceBody():
            return TextPart(text=f"The tool {block.tool_name} can be called now.")
        case _:
            return _read(block) or unseen(block.type)


_Held = (
    blocks.AnthropicMediaBlockBody
    | blocks.AnthropicDocumentBlockBody
    | blocks.AnthropicSearchResultBlockBody
)


def _read(block: _Held) -> TextPart | None:
    """Return the text that the model reads for a block other than a text block; None if the model
    cannot read the block."""
    match block:
        case blocks.AnthropicSearchResultBlockBody():
            heading = f"Search result: {block.title} ({block.source})"
            return _lines(heading, *(piece.text for piece in block.content))
        case blocks.AnthropicDocumentBlockBody(source=blocks.AnthropicPlainSourceBody() as source):
            return _lines(*_heading(block), source.data)
        case blocks.AnthropicDocumentBlockBody(source=blocks.AnthropicBlocksSourceBody() as source):
            pieces = _texts_of(source.content)
            return _lines(*_heading(block), *(piece.text for piece in pieces))
        case _:
            return None


def _heading(block: blocks.AnthropicDocumentBlockBody) -> list[str]:
    title = f"Document: {block.title}" if block.title else "Document:"
    return [title, *([block.context] if block.context else [])]


def _lines(*lines: str) -> TextPart:
    return TextPart(text="\n".join(lines))


def unseen_of(messages: Sequence[blocks.AnthropicMessageBody]) -> list[str]:
    """Return the paths of non-text content in tool results."""
    return [
        f"messages[{number}].content[{place}].content[{index}]"
        for number, message in enumerate(messages)
        for place, result in _results_of(message)
        for index, inner in enumerate(result)
        if isinstance(inner, _Held) and _read(inner) is None
    ]


def provided_in(messages: Sequence[blocks.AnthropicMessageBody]) -> list[str]:
    """Return the paths of the blocks that belong to the provider's server tools."""
    return [
        f"messages[{number}].content[{place}]"
        for number, message in enumerate(messages)
        for place, block in enumerate(() if isinstance(message.content, str) else message.content)
        if isinstance(block, blocks.AnthropicProvidedBlockBody)
    ]


def _results_of(
    message: blocks.AnthropicMessageBody,
) -> Iterator[tuple[int, Sequence[blocks.ResultBlock]]]:
    """Yield the index and the blocks of each tool result that consists of blocks."""
    if not isinstance(message, blocks.AnthropicUserMessageBody):
        return
    for place, block in enumerate(() if isinstance(message.content, str) else message.content):
        if isinstance(block, blocks.AnthropicToolResultBody) and isinstance(block.content, list):
            yield place, block.content


def _assistant_turns(content: str | Sequence[blocks.AssistantBlock]) -> Iterator[ChatMessage]:
    """Yield the assistant's turn. An answer without content, which shoal itself may have sent,
    yields nothing."""
    if isinstance(content, str):
        if content:
            yield ChatMessage(role="assistant", parts=_texts_of(content))
        return
    texts: list[TextPart] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for block in content:
        match block:
            case blocks.AnthropicTextBlockBody():
                texts.append(TextPart(text=block.text))
            case blocks.AnthropicThinkingBlockBody():
                thoughts.append(block.thinking)
            case blocks.AnthropicRedactedBlockBody() | blocks.AnthropicProvidedBlockBody():
                pass
            case blocks.AnthropicToolUseBody():
                arguments = json_bytes(block.input).decode()
                calls.append(ToolCall(call_id=block.id, name=block.name, arguments=arguments))
    if texts or thoughts or calls:
        yield ChatMessage(
            role="assistant",
            parts=tuple(texts),
            reasoning="\n".join(thoughts) or None,
            tool_calls=tuple(calls),
        )


def _texts_of(content: str | Sequence[blocks.AnthropicTextBlockBody]) -> tuple[TextPart, ...]:
    if isinstance(content, str):
        return (TextPart(text=content),)
    return tuple(TextPart(text=block.text) for block in content)


def _no_text(block: _Held, field: str) -> BadRequest:
    return bad_field(field, f"{TEXT_ONLY}; send the {block.type}'s text instead")
