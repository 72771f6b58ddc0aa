"""What the files of a tokenizer say together, or leave out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, processors

from bus.wire.errors import Refusal
from bus.wire.ids import ModelId, RequestId
from bus.wire.messages.requests import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    OutputFormat,
    TextPart,
    TextPrompt,
)
from runner.text import ModelTokenizer, Text
from runner.text.prepared import PreparedRequest
from tests.harness.toy_tokenizer import TEMPLATE, save_toy

SAID = "hello world, naïve\n日本語 🐟"


def asked(prompt: Any, **fields: Any) -> GenerationRequest:
    return GenerationRequest(request_id=RequestId("r"), model=ModelId("m"), prompt=prompt, **fields)


CHAT = ChatPrompt(messages=(ChatMessage(role="user", parts=(TextPart(text="hello"),)),))


def with_decoder(path: Path, decoder: Any) -> ModelTokenizer:
    file = save_toy(path) / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "decoder": decoder}))
    return ModelTokenizer(path)


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "Fuse"},
        {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
    ],
)
def test_a_byte_level_tokenizer_says_text_whatever_its_decoder(
    tmp_path: Path, decoder: Any
) -> None:
    tokenizer = with_decoder(tmp_path, decoder)
    tokens = tokenizer.encode(SAID)
    detokeniser = tokenizer.detokeniser(begins=True)
    assert "".join(map(detokeniser.add, tokens)) + detokeniser.flush() == SAID
    assert tokenizer.decode(tokens) == SAID
    assert "byte-level" in tokenizer.facts["decoder"]
    assert tokenizer.guide.vocab_size == tokenizer.vocabulary


def test_a_model_without_a_grammar_engine_serves_all_but_schemas(tmp_path: Path) -> None:
    folder = save_toy(tmp_path)
    file = folder / "tokenizer.json"
    said = json.loads(file.read_text())
    said["pre_tokenizer"] = None
    said["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": False}
    file.write_text(json.dumps(said))
    text = Text(ModelTokenizer(folder))
    assert "does not support grammars" in text.facts["grammars"]
    assert isinstance(text.prepare(asked(CHAT), 4096), PreparedRequest)
    refused = text.prepare(asked(CHAT, output=OutputFormat(kind="json_object")), 4096)
    assert isinstance(refused, Refusal) and refused.field == "response_format"


def test_an_answer_ends_at_every_end_that_any_file_names(tmp_path: Path) -> None:
    folder = save_toy(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1]}))
    (folder / "config.json").write_text(
        json.dumps({"model_type": "x", "vocab_size": 704, "text_config": {"eos_token_id": 0}})
    )
    tokenizer = ModelTokenizer(folder)
    assert tokenizer.eos_token_ids == {0, 1, 2}
    assert tokenizer.facts["ends"] == "0 (<|endoftext|>), 1 (<|im_start|>), 2 (<|im_end|>)"


def test_a_template_in_a_file_beside_is_read_where_there_is_no_other(tmp_path: Path) -> None:
    folder = save_toy(tmp_path, template=None)
    assert not ModelTokenizer(folder).has_template
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    tokenizer = ModelTokenizer(folder)
    assert tokenizer.has_template and tokenizer.family.calls is not None
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = "{{ messages[0].content }}!"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    other = ModelTokenizer(folder).render(
        [{"role": "user", "content": "hi"}], [], thinking=False, continue_final=False
    )
    assert other == "hi!"


def test_a_raw_prompt_that_begins_with_the_mark_of_the_beginning_has_it_once(
    tmp_path: Path,
) -> None:
    folder = save_toy(tmp_path)
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.add_special_tokens([AddedToken("<s>", special=True)])
    begins = made.token_to_id("<s>")
    made.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", begins)]
    )
    made.save(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "bos_token": "<s>"}))
    text = Text(ModelTokenizer(folder))
    for prompt in ("hello", "<s>hello"):
        found = text.prepare(asked(TextPrompt(text=prompt)), 4096)
        assert isinstance(found, PreparedRequest)
        assert list(found.tokens).count(begins) == 1, prompt
