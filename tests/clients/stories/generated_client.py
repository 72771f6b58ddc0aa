"""Asks a node through a client that was generated from its OpenAPI document; tells what came.

Run as `generated_client.py URL MODEL`, where the generated package can be imported as
`shoal_client`: one JSON object, with what each call came to.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from shoal_client import Client
from shoal_client import models as types
from shoal_client.api.anthropic_api import post_v1_messages
from shoal_client.api.ollama_api import post_api_chat
from shoal_client.api.open_ai_api import (
    post_v1_chat_completions,
    post_v1_completions,
    post_v1_responses,
)
from shoal_client.api.prompts import post_tokenize

QUESTION, MOST = "List the integers from 1 to 30", 60


def main(url: str, model: str) -> dict[str, Any]:
    client = Client(base_url=url, timeout=90, raise_on_unexpected_status=True)
    turn = types.UserMessageBody(role="user", content=QUESTION)
    body = types.ChatCompletionsBody(
        model=model, messages=[turn], max_tokens=MOST, temperature=0, reasoning_effort="none"
    )
    chat = post_v1_chat_completions.sync(client=client, body=body)
    assert isinstance(chat, types.ChatAnswer), chat
    message = post_v1_messages.sync(
        client=client,
        body=types.AnthropicMessagesBody(
            model=model,
            messages=[types.AnthropicUserMessageBody(role="user", content=QUESTION)],
            max_tokens=MOST,
            temperature=0,
        ),
    )
    assert isinstance(message, types.AnthropicAnswer), message
    response = post_v1_responses.sync(
        client=client,
        body=types.ResponsesBody(
            model=model,
            input_=QUESTION,
            max_output_tokens=MOST,
            temperature=0,
            reasoning=types.ResponsesEffortBody(effort="none"),
        ),
    )
    assert isinstance(response, types.ResponseAnswer), response
    user = types.OllamaMessageBodyRole.USER
    options = types.OllamaChatBodyOptionsType0.from_dict({"num_predict": MOST, "temperature": 0})
    line = post_api_chat.sync(
        client=client,
        body=types.OllamaChatBody(
            model=model,
            messages=[types.OllamaMessageBody(role=user, content=QUESTION)],
            stream=False,
            think=False,
            options=options,
        ),
    )
    assert isinstance(line, types.OllamaChatAnswer), line
    tokens = post_tokenize.sync(client=client, body=types.TokenizeBody(model=model, prompt="one"))
    assert isinstance(tokens, types.TokenizeAnswer), tokens
    refused = post_v1_completions.sync(
        client=client, body=types.CompletionsBody(model="nobody-has-it", prompt="a")
    )
    assert isinstance(refused, types.Error), refused
    return {
        "texts": {
            "chat": chat.choices[0].message.content,
            "messages": "".join(block.text for block in message.content),
            "responses": response.output[0].content[0].text,
            "ollama": line.message.content,
            "streamed": streamed(client, body),
        },
        "answer_tokens": [
            chat.usage.completion_tokens,
            message.usage.output_tokens,
            response.usage.output_tokens,
            line.eval_count,
        ],
        "tokens": tokens.count,
        "refused": refused.error.code,
    }


def streamed(client: Client, body: Any) -> str:
    """The text of a stream, each of whose events the generated type reads."""
    text = ""
    sent = {**body.to_dict(), "stream": True}
    with client.get_httpx_client().stream("POST", "/v1/chat/completions", json=sent) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                chunk = types.ChatChunk.from_dict(json.loads(line[6:]))
                text += "".join(choice.delta.content or "" for choice in chunk.choices)
    return text


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
