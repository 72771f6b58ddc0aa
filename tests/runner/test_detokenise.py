from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from runner.detokenise import TokenTable, WholeTextDetokeniser
from tests.harness.toy_tokenizer import VOCABULARY, toy_tokenizer


def reference(tokens: list[int]) -> str:
    """What the tokenizer's own library makes of the whole."""
    return toy_tokenizer()._backend.decode(tokens, skip_special_tokens=True)


def streamed(tokens: list[int]) -> list[str]:
    detokeniser = toy_tokenizer().detokeniser()
    return [*(detokeniser.add(token) for token in tokens), detokeniser.flush()]


@given(st.text(max_size=60))
def test_streamed_pieces_join_to_the_text_that_was_tokenised(text: str) -> None:
    tokens = toy_tokenizer().encode(text)
    pieces = streamed(tokens)
    assert "".join(pieces) == text.replace("<|im_start|>", "")
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@settings(max_examples=300)
@given(st.lists(st.integers(0, 606), max_size=30))
def test_any_tokens_read_as_the_tokenizer_itself_reads_them(tokens: list[int]) -> None:
    assert "".join(streamed(tokens)) == reference(tokens)


def test_half_a_character_is_held_back_and_flushed_as_a_replacement() -> None:
    tokenizer = toy_tokenizer()
    parts = [tokenizer._backend.token_to_id(letter) for letter in "ðŁĲ"]  # 3 of 4 bytes
    detokeniser = tokenizer.detokeniser()
    assert [detokeniser.add(part) for part in parts] == ["", "", ""]
    assert detokeniser.held
    assert detokeniser.flush() == "\ufffd"
    assert not detokeniser.held


def test_special_tokens_and_padding_of_the_vocabulary_say_nothing_but_markers_do() -> None:
    tokenizer = toy_tokenizer()
    marker = tokenizer.token_id("<think>")
    assert marker is not None
    assert streamed([0, 1, 2, VOCABULARY - 1, VOCABULARY + 5, marker]) == [
        *[""] * 5,
        "<think>",
        "",
    ]


def test_byte_fallback_vocabularies_join_bytes_and_strip_the_first_space() -> None:
    table = TokenTable.build(
        ["<s>", "▁Hello", "▁world", "<0xC3>", "<0xBC>", "!"],
        {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace"},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip"},
            ],
        },
        added={0: b"<s>"},
        hidden=frozenset({0}),
    )
    assert table is not None
    detokeniser = table.detokeniser()
    said = [detokeniser.add(token) for token in (0, 1, 2, 3, 4, 5)]
    assert said == ["", "Hello", " world", "", "ü", "!"]


def test_other_decoders_have_no_table() -> None:
    assert TokenTable.build(["a"], {"type": "WordPiece"}, added={}, hidden=frozenset()) is None
    assert TokenTable.build(["a"], None, added={}, hidden=frozenset()) is None


@given(st.text(alphabet="the quick brown ünï 🐟\n", max_size=40))
def test_the_fallback_reads_the_same_text(text: str) -> None:
    tokenizer = toy_tokenizer()
    fallback = WholeTextDetokeniser(
        tokenizer._wrapper.detokenizer, tokenizer._hidden(), tokenizer._contents()
    )
    tokens = tokenizer.encode(text)
    said = "".join(fallback.add(token) for token in tokens) + fallback.flush()
    assert said.lstrip(" ") == text.lstrip(" ")
