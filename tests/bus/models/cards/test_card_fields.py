"""What a card may say, and what a refusal of one names: the key, the line, what may be meant."""

from __future__ import annotations

import pytest

from bus.models.cards import BadCard, read_card


def refusal(text: str) -> BadCard:
    with pytest.raises(BadCard) as caught:
        read_card(text.encode())
    return caught.value


@pytest.mark.parametrize(
    ("text", "key", "line", "words"),
    [
        ("pin = true\n\ntemprature = 1\n", "temprature", 3, "did you mean temperature?"),
        ('prefill_on = "a b"\n', "prefill_on", 1, "neither auto nor the name or id of a node"),
        ("num_ctx = 5\n", "num_ctx", 1, "did you mean context_tokens?"),
        ("# temperature = 9\n'temperature' = 9\n", "temperature", 2, "must be at most 5"),
        ('stop = ["a"]\nkv = "16bit"\n', "kv", 2, "kv = 16bit"),
        ("system = 1\n", "system", 1, "system must be a string"),
        ('system = """\ntop_k = "x"\n"""\ntop_k = "x"\n', "top_k", 4, "top_k must be a number"),
        ("[sampling]\ntemperature = 1\n", "sampling", 1, "the card has no key 'sampling'"),
        ("pin = true\npin = \n", "", 2, "the card is not valid TOML"),
        ('priority = "later"\n', "priority", 1, "urgent, high, normal, low, batch"),
        ("priority = 1001\n", "priority", 1, "from 0 (first) to 1000"),
        ("memory_bytes = 0\n", "memory_bytes", 1, "a whole number of bytes above 0"),
        ("metal_fast_synch = 1\n", "metal_fast_synch", 1, "must be true or false"),
        ('adapters = ["../up"]\n', "adapters", 1, "'../up' is not the name of an adapter"),
        ('adapters = ["a"]\nadapter = "b"\n', "adapter", 2, "b is not in adapters"),
        ('tool_parser = "qwen"\n', "tool_parser", 1, "must be one of function_gemma"),
        (
            "special_tokens_in_messages = 1\n",
            "special_tokens_in_messages",
            1,
            "must be true or false",
        ),
        ("special_tokens = true\n", "special_tokens", 1, "did you mean special_tokens_in_messages"),
        ('speculate = "on"\n', "speculate", 1, "must be one of auto, off, ngram"),
        ('reasoning_parser = "r1"\n', "reasoning_parser", 1, "must be one of think, mistral"),
        ('draft_model = "a b"\n', "draft_model", 1, "cannot be the name of a model"),
    ],
)
def test_a_refusal_names_the_key_and_its_line(text: str, key: str, line: int, words: str) -> None:
    error = refusal(text)
    assert (error.key, error.line) == (key, line)
    assert words in str(error) and (f"line {line}" in str(error))


def test_what_is_no_text_too_long_or_too_deep_is_refused_without_a_line() -> None:
    for data, words in (
        (b"system = '\xff'", "not UTF-8 text"),
        (b"#" * 70_000, "more than 64 KiB"),
        (b"stop = " + b"[" * 5_000, "the card is nested too deeply"),
        (b"seed = 1" + b"0" * 5_000, "the card is not valid TOML"),
    ):
        with pytest.raises(BadCard, match=words) as caught:
            read_card(data)
        assert caught.value.line == 0


def test_an_empty_card_says_nothing_and_one_of_comments_too() -> None:
    assert read_card(b"") == read_card(b"# temperature = 1\n")
    assert read_card(b"").said == ()
