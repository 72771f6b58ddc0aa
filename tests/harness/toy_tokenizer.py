"""Talks to the file system: a real tokenizer, small enough to be trained in a test.

Byte-level BPE with ChatML and Qwen3's markers for thinking and tool calls, in a directory that
`runner.text.tokenizer` opens like any model's.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from runner.engine import GrammarSpec
from runner.text import ModelTokenizer
from runner.text.grammar import open_matcher

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
FILL_IN = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
VOCABULARY = 704

TEMPLATE = """\
{%- if messages[0].role == 'system' or tools %}{{ '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- if tools %}{{ '\\n\\n# Tools\\n' }}
{%- for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}{% endif %}
{{- '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'system' %}
{%- if not loop.first %}{{ raise_exception('a system message comes first') }}{% endif %}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content }}
{{- '\\n</tool_response><|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.reasoning_content %}
{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}
{{- message.content }}
{%- for tool_call in message.tool_calls or [] %}
{%- set tool_call = tool_call.function %}
{{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
{{- tool_call.arguments if tool_call.arguments is string else tool_call.arguments | tojson }}
{{- '}\\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"""

HARMONY_TEMPLATE = """\
{%- if tools %}{{ '<|start|>developer<|message|>' + tools | tojson + '<|end|>' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' and message.tool_calls %}
{%- if message.content and message.thinking %}{{ raise_exception('not both') }}{% endif %}
{%- if message.thinking or message.content %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' }}
{{- (message.thinking or message.content) + '<|end|>' }}
{%- endif %}
{{- '<|start|>assistant to=functions.' + message.tool_calls[0].function.name }}
{{- '<|channel|>commentary json<|message|>' }}
{{- message.tool_calls[0].function.arguments | tojson + '<|call|>' }}
{%- elif message.role == 'assistant' %}
{{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}
{%- else %}{{ '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""
"""Turns with channels, as gpt-oss has them."""

_CORPUS = [
    'hello world, the quick brown fox {"name": "get_weather", "arguments": {"city": "Paris"}}',
    "true false null 0123456789 Let me think about it. ünïcödé naïve Straße Grüße 日本語 🐟🐠",
    "A shoal moves as one. def run(self):\n    return 42\n\n",
]


def save_toy(
    path: Path, *, template: str | None = TEMPLATE, markers: Sequence[str] = MARKERS
) -> Path:
    """Write the tokenizer and a config; returns `path`."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(_CORPUS * 4, trainer)
    made.add_tokens(
        [AddedToken(text, special=text.startswith("<|"), normalized=False) for text in markers]
    )
    made.save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    if template is not None:
        settings["chat_template"] = template
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    (path / "config.json").write_text(
        json.dumps({"model_type": "qwen3", "vocab_size": VOCABULARY, "eos_token_id": [2, 0]})
    )
    return path


@lru_cache(maxsize=4)
def toy_tokenizer(
    template: str | None = TEMPLATE, markers: Sequence[str] = tuple(MARKERS)
) -> ModelTokenizer:
    """The toy, opened; one for all tests of a process."""
    with tempfile.TemporaryDirectory() as folder:
        opened = ModelTokenizer(save_toy(Path(folder), template=template, markers=markers))
        assert opened.guide.vocab_size == VOCABULARY
        return opened


def random_output(
    tokenizer: ModelTokenizer,
    spec: GrammarSpec,
    seed: int,
    *,
    closing: Collection[int | None] = (),
    limit: int = 600,
) -> str | None:
    """What a model of no mind at all says under the grammar: random tokens, hurrying to an end and
    to those that are `closing`; None if it is at no end after `limit` tokens."""
    chance = random.Random(seed)
    matcher = open_matcher(tokenizer.guide, spec)
    detokeniser = tokenizer.detokeniser(begins=True)
    text = ""
    for _ in range(limit):
        mask = matcher.compute_bitmask()
        assert not matcher.is_error(), matcher.get_error()
        allowed = [i for i in range(VOCABULARY) if mask[i // 8] >> (i % 8) & 1]
        assert allowed
        ends = [token for token in allowed if token in tokenizer.eos_token_ids]
        quick = ends or [token for token in allowed if token in closing]
        token = chance.choice(quick if quick and chance.random() < 0.5 else allowed)
        if token in tokenizer.eos_token_ids:
            assert matcher.is_accepting()
            return text + detokeniser.flush()
        assert matcher.consume_token(token)
        text += detokeniser.add(token)
    return None
