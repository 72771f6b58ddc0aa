"""The official OpenAI client and conversations against a running node."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

FIELDS: dict[str, Any] = {
    "temperature": 0,
    "reasoning": {"effort": "none"},
    "max_output_tokens": 100,
}
COUNT = "List the integers from 1 to 5"


def test_a_conversation_is_led_from_its_beginning_to_its_end(client: OpenAI, model: str) -> None:
    made = client.conversations.create(
        items=[{"type": "message", "role": "developer", "content": "Be brief."}],
        metadata={"topic": "numbers"},
    )
    assert (made.object, made.metadata) == ("conversation", {"topic": "numbers"})
    first = client.responses.create(model=model, input=COUNT, conversation=made.id, **FIELDS)
    assert first.conversation is not None and first.conversation.id == made.id
    assert "1, 2, 3" in first.output_text
    with client.responses.stream(
        model=model, input="And again.", conversation={"id": made.id}, **FIELDS
    ) as stream:
        second = stream.until_done().get_final_response()
    assert second.usage is not None and first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens, "it reads what came before"
    items: list[Any] = list(client.conversations.items.list(made.id, order="asc", limit=2))
    assert [(one.type, one.role) for one in items] == [
        *(("message", "developer"), ("message", "user"), ("message", "assistant")),
        *(("message", "user"), ("message", "assistant")),
    ]
    assert items[2].content[0].text == first.output_text
    left = client.conversations.items.delete(items[1].id, conversation_id=made.id)
    assert left.id == made.id
    assert client.conversations.update(made.id, metadata={}).metadata == {}
    assert client.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model=model, input=COUNT, conversation=made.id, **FIELDS)
    assert client.responses.retrieve(first.id).output_text == first.output_text


@pytest.mark.proof
def test_calls_and_their_answers_are_items_as_the_client_sends_them(client: OpenAI) -> None:
    made = client.conversations.create()
    added = client.conversations.items.create(
        made.id,
        items=[
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "done"},
        ],
    )
    assert [one.type for one in added.data] == ["message", "function_call", "function_call_output"]
    call: Any = client.conversations.items.retrieve(added.data[1].id, conversation_id=made.id)
    assert (call.call_id, call.name) == ("c", "f")


@pytest.mark.proof
def test_tokens_are_counted_with_what_stands_in_it_and_nothing_is_added(
    client: OpenAI, model: str
) -> None:
    made = client.conversations.create(items=[{"type": "message", "role": "user", "content": "a"}])
    alone = client.responses.input_tokens.count(model=model, input="and this")
    told = client.responses.input_tokens.count(model=model, input="and this", conversation=made.id)
    assert told.input_tokens > alone.input_tokens > 0
    assert len(list(client.conversations.items.list(made.id))) == 1


@pytest.mark.proof
def test_both_ways_to_go_on_at_once_are_refused(client: OpenAI, model: str) -> None:
    made = client.conversations.create()
    with pytest.raises(openai.BadRequestError, match="Mutually exclusive parameters") as refused:
        client.responses.create(
            model=model, input="a", conversation=made.id, previous_response_id="resp_1"
        )
    assert refused.value.param == "conversation"


async def _asked(url: str) -> str:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        made = await client.conversations.create(metadata={"a": "b"})
        return (await client.conversations.retrieve(made.id)).id


@pytest.mark.proof
def test_the_asynchronous_client_begins_one(node_url: str) -> None:
    assert asyncio.run(_asked(node_url)).startswith("conv_")
