"""Conversations as OpenAI's clients send and read them: pure, by the types of the official one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import conversations as published
from openai.types.conversations.conversation_item import ConversationItem
from openai.types.conversations.conversation_item_list import ConversationItemList
from pydantic import TypeAdapter

from bus.wire.errors import BadRequest
from bus.wire.messages.requests import ChatPrompt
from gateway.dialects.dialect import Limits, Parsed
from gateway.dialects.openai.responses import OpenAIResponses
from gateway.dialects.openai.responses.conversations import (
    MOST_ADDED,
    read_conversation,
    read_conversation_items,
    read_conversation_page,
    render_conversation,
    render_conversation_item,
    render_conversation_items,
    render_conversation_removed,
    with_named,
)

RESPONSES = OpenAIResponses()
BODY: dict[str, Any] = {"model": "shoal-tiny", "input": "hi", "conversation": "conv_req-n1-h0-b-7"}
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "hello"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
    {"role": "developer", "content": "Be brief."},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "done"},
    {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "d", "output": "done"},
    {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "short"}],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    },
]


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_items_of_every_kind_are_told_as_the_official_client_reads_them(desk: Any) -> None:
    asked = read_conversation(encoded({"items": ITEMS, "metadata": {"a": "b"}}), desk.context())
    items = with_named(asked, {})
    assert [name.split("_")[0] for name, _ in items] == [
        *("msg", "msg", "msg", "fc", "fco", "ctc", "ctco", "rs")
    ]
    assert len({name for name, _ in items}) == len(items)
    told = render_conversation_items([content for _, content in items], True, ())
    page = TypeAdapter(ConversationItemList).validate_json(told)
    assert [one.type for one in page.data] == [one.get("type", "message") for one in ITEMS]
    assert (page.first_id, page.last_id, page.has_more) == (items[0][0], items[-1][0], True)
    for name, content in items:
        one = TypeAdapter[Any](ConversationItem).validate_json(
            render_conversation_item(content, ())
        )
        assert one.id == name
    conversation = published.Conversation.model_validate_json(
        render_conversation(asked.request, 1000.5, asked.labels)
    )
    assert conversation.id == f"conv_{asked.request}"
    assert (conversation.created_at, conversation.metadata) == (1000, {"a": "b"})
    gone = published.ConversationDeletedResource.model_validate_json(
        render_conversation_removed(conversation.id)
    )
    assert gone.deleted and gone.object == "conversation.deleted"


def test_no_body_begins_an_empty_conversation(desk: Any) -> None:
    for body in (b"", b"{}", encoded({"items": None, "metadata": None})):
        asked = read_conversation(body, desk.context())
        assert (asked.items, asked.labels) == ((), b"{}")


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"items": [ITEMS[0]] * (MOST_ADDED + 1)}, "items"),
    ({"items": [{"role": "user", "content": [{"type": "input_image"}]}]}, "items[0].content[0]"),
    ({"items": [{"type": "compaction"}]}, "items[0]"),
    ({"items": [ITEMS[0], {"type": "item_reference", "id": "msg_1"}]}, "items[1]"),
    ({"items": [{**ITEMS[0], "id": "msg_a"}] * 2}, "items[1]"),
    ({"items": "hello"}, "items"),
    ({"metadata": {"a": 1}}, "metadata.a"),
    ({"metadata": {str(count): "" for count in range(17)}}, "metadata"),
    ({"metadata": []}, "metadata"),
    ({"metdata": {}}, "metdata"),
]


@pytest.mark.parametrize(("body", "field"), REFUSALS)
def test_what_cannot_be_kept_is_refused_by_name(
    desk: Any, body: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        with_named(read_conversation(encoded(body), desk.context()), {})
    assert refused.value.field == field


def test_items_are_to_be_some_where_they_are_added(desk: Any) -> None:
    for body in ({}, {"items": []}, {"items": [ITEMS[0]] * 21}):
        with pytest.raises(BadRequest) as refused:
            read_conversation_items(encoded(body), desk.context())
        assert refused.value.field == "items"


def test_items_of_tools_that_are_not_offered_are_named_as_left_out(desk: Any) -> None:
    body = {"items": [ITEMS[0], {"type": "web_search_call", "id": "ws_1", "status": "completed"}]}
    asked = read_conversation_items(encoded(body), desk.context())
    assert asked.ignored == ("items[1]",) and len(asked.items) == 1


def test_what_is_included_is_told_and_else_left_out(desk: Any) -> None:
    part = {"type": "output_text", "text": "a", "annotations": [], "logprobs": [{"token": "a"}]}
    message = encoded({"id": "msg_1", "type": "message", "role": "assistant", "content": [part]})
    thought = {"id": "rs_1", "type": "reasoning", "summary": []}
    reasoning = encoded({**thought, "content": [{"type": "reasoning_text", "text": "hm"}]})
    page = read_conversation_page(
        {}, ["message.output_text.logprobs", "reasoning.encrypted_content"]
    )
    assert (page.limit, page.descends, page.after) == (20, True, "")
    told = [
        json.loads(render_conversation_item(one, page.includes)) for one in (message, reasoning)
    ]
    assert told[0]["content"] == [part] and told[1]["encrypted_content"].startswith("shoal-1.")
    plain = [json.loads(render_conversation_item(one, ())) for one in (message, reasoning)]
    assert plain[0]["content"][0]["logprobs"] == [] and "encrypted_content" not in plain[1]
    for query, includes, field in (
        ({"limit": "0"}, (), "limit"),
        ({"order": "up"}, (), "order"),
        ({}, ("all",), "include"),
    ):
        with pytest.raises(BadRequest) as refused:
            read_conversation_page(query, includes)
        assert refused.value.field == field


# --- a response in a conversation ----------------------------------------------------------------


def goes_on(desk: Any, parsed: Parsed, *before: dict[str, Any]) -> Parsed:
    return RESPONSES.continued(parsed, None, Limits(), {}, [encoded(one) for one in before])


FIRST = {"id": "msg_0", "type": "message", "role": "user", "content": "who?", "status": "completed"}


def test_the_items_of_a_conversation_come_before_those_of_the_body(desk: Any) -> None:
    parsed = goes_on(desk, desk.parse(RESPONSES, {**BODY, "instructions": "Be brief."}), FIRST)
    prompt = parsed.requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    said = [(turn.role, turn.parts[0].text) for turn in prompt.messages]
    assert said == [("system", "Be brief."), ("user", "who?"), ("user", "hi")]
    assert parsed.to_keep is not None and parsed.to_keep.turn is not None
    turn = parsed.to_keep.turn
    assert turn.conversation == BODY["conversation"]
    assert [name for name, _ in turn.items] == ["msg_req-n1-0-boot-0-in0"]
    assert len(parsed.to_keep.items) == 2, "what a kept answer tells as its input has both"


@pytest.mark.parametrize("named", ["conv_x", {"id": "conv_x"}])
def test_a_response_says_its_conversation_back(desk: Any, named: Any) -> None:
    parsed = desk.parse(RESPONSES, {**BODY, "conversation": named})
    assert parsed.echoed_fields["conversation"] == {"id": "conv_x"}
    assert (
        desk.parse(RESPONSES, {**BODY, "conversation": None}).echoed_fields["conversation"] is None
    )


def test_what_is_not_to_be_kept_still_has_items_for_its_conversation(desk: Any) -> None:
    parsed = goes_on(desk, desk.parse(RESPONSES, {**BODY, "store": False}))
    assert parsed.to_keep is not None and parsed.to_keep.turn is not None
    assert not parsed.to_keep.keep and len(parsed.to_keep.turn.items) == 1


def test_input_may_be_left_out_unless_there_is_nothing_at_all(desk: Any) -> None:
    parsed = desk.parse(RESPONSES, {**BODY, "input": None})
    assert goes_on(desk, parsed, FIRST).requests
    with pytest.raises(BadRequest) as refused:
        goes_on(desk, parsed)
    assert refused.value.field == "input"


def test_an_item_that_is_there_already_is_refused(desk: Any) -> None:
    again = [{"role": "user", "content": "hi"}, {**FIRST}]
    with pytest.raises(BadRequest, match="Duplicate item found with id msg_0") as refused:
        goes_on(desk, desk.parse(RESPONSES, {**BODY, "input": again}), FIRST)
    assert refused.value.field == "input[1]"


def test_only_an_answer_that_ended_well_adds_to_its_conversation(desk: Any) -> None:
    parsed = desk.parse(RESPONSES, BODY)
    assert parsed.to_keep is not None and parsed.to_keep.turn is not None
    said = parsed.to_keep.turn.output_items
    output = [{"id": "msg_9", "type": "message"}]
    for status, adds in (("completed", True), ("incomplete", True), ("failed", False),
                         ("cancelled", False)):  # fmt: skip
        found = said(encoded({"status": status, "output": output}))
        assert (found is not None) == adds
        assert not adds or [name for name, _ in found or ()] == ["msg_9"]
