from __future__ import annotations

import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from runner.text.detokenise import TokenTable, WholeTextDetokeniser
from tests.harness.toy_tokenizer import SPECIAL, VOCABULARY, toy_tokenizer


def reference(tokens: list[int]) -> str:
    """What the tokenizer's own library makes of the whole."""
    return toy_tokenizer()._backend.decode(tokens, skip_special_tokens=True)


def streamed(tokens: list[int]) -> list[str]:
    detokeniser = toy_tokenizer().detokeniser(begins=True)
    return [*(detokeniser.add(token) for token in tokens), detokeniser.flush()]


@given(st.text(max_size=60))
def test_streamed_pieces_join_to_the_text_that_was_tokenised(text: str) -> None:
    tokens = toy_tokenizer().encode(text)
    pieces = streamed(tokens)
    assert "".join(pieces) == re.sub("|".join(map(re.escape, SPECIAL)), "", text)
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@settings(max_examples=300)
@given(st.lists(st.integers(0, 606), max_size=30))
def test_any_tokens_read_as_the_tokenizer_itself_reads_them(tokens: list[int]) -> None:
    assert "".join(streamed(tokens)) == reference(tokens)


def test_half_a_character_is_held_back_and_flushed_as_a_replacement() -> None:
    tokenizer = toy_tokenizer()
    parts = [tokenizer._backend.token_to_id(letter) for letter in "ðŁĲ"]  # 3 of 4 bytes
    detokeniser = tokenizer.detokeniser(begins=True)
    assert [detokeniser.add(part) for part in parts] == ["", "", ""]
    assert detokeniser.is_incomplete
    assert detokeniser.flush() == "\ufffd"
    assert not detokeniser.is_incomplete


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
    for begins, first in ((True, "Hello"), (False, " Hello")):
        detokeniser = table.detokeniser(begins=begins)
        said = [detokeniser.add(token) for token in (0, 1, 2, 3, 4, 5)]
        assert said == ["", first, " world", "", "ü", "!"]


@given(st.text(alphabet="the quick 日本 ünï🐟\n", max_size=40))
def test_text_of_a_byte_fallback_tokenizer_comes_back_character_by_character(text: str) -> None:
    said = SPOKEN.detokeniser(begins=True)
    tokens = FALLBACK.encode(" " + text).ids
    pieces = [said.add(token) for token in tokens]
    assert "".join(pieces) + said.flush() == text == FALLBACK.decode(tokens)
    assert all("\ufffd" not in piece for piece in pieces)


def byte_fallback_tokenizer() -> Tokenizer:
    """SentencePiece's shape: words from a vocabulary, everything else as bytes."""
    words = ["▁the", "▁quick", *"▁thequick\n"]
    names = [*[f"<0x{byte:02X}>" for byte in range(256)], *dict.fromkeys(words)]
    vocab = [(name, -float(len(names) - place)) for place, name in enumerate(names)]
    made = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return made


def spoken(made: Tokenizer) -> TokenTable:
    names = [made.id_to_token(index) or "" for index in range(made.get_vocab_size())]
    decoder = json.loads(made.to_str())["decoder"]
    table = TokenTable.build(names, decoder, added={}, hidden=frozenset())
    assert table is not None
    return table


FALLBACK = byte_fallback_tokenizer()
SPOKEN = spoken(FALLBACK)


def test_other_decoders_have_no_table() -> None:
    assert TokenTable.build(["a"], {"type": "WordPiece"}, added={}, hidden=frozenset()) is None
    assert TokenTable.build(["a"], None, added={}, hidden=frozenset()) is None


def test_the_fallback_says_whether_the_last_token_ended_inside_a_character() -> None:
    tokenizer = toy_tokenizer()
    fallback = WholeTextDetokeniser(tokenizer._opened.streaming(), tokenizer._hidden())
    *first, last = tokenizer.encode("🐟")
    for token in first:
        assert fallback.add(token) == "" and fallback.is_incomplete
    fallback.add(last)
    fallback.flush()
    assert not fallback.is_incomplete


@given(st.text(alphabet="the quick brown ünï 🐟\n", max_size=40))
def test_the_fallback_reads_the_same_text(text: str) -> None:
    tokenizer = toy_tokenizer()
    fallback = WholeTextDetokeniser(tokenizer._opened.streaming(), tokenizer._hidden())
    tokens = tokenizer.encode(text)
    said = "".join(fallback.add(token) for token in tokens) + fallback.flush()
    assert said.lstrip(" ") == text.lstrip(" ")
