from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects import sse
from tests.harness.sse_frames import Frame, FrameReader

PAYLOADS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1)


def _cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(stream) + 1) for cut in cuts})
    starts = [0, *places]
    ends = [*places, len(stream)]
    return [stream[start:end] for start, end in zip(starts, ends, strict=True)]


@given(
    st.lists(st.tuples(PAYLOADS, st.sampled_from([None, "message_start", "ping"])), max_size=6),
    st.lists(st.integers(0, 10_000), max_size=12),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_frames_reassemble_from_any_pieces(
    sent: list[tuple[str, str | None]], cuts: list[int], line_end: bytes
) -> None:
    stream = b""
    for payload, event in sent:
        stream += sse.comment("still here")
        encoded = payload.encode()
        name = b"" if event is None else b"event: " + event.encode() + b"\n"
        stream += name + sse.frame(encoded)
    stream = stream.replace(b"\n", line_end)
    reader = FrameReader()
    # with bare CR the last line end is held back until something follows it
    pieces = [*_cut(stream, cuts), b": end" + line_end * 2]
    read = [frame for piece in pieces for frame in reader.feed(piece)]
    # the reader strips one space after the colon, as the standard says
    assert read == [Frame(payload, event) for payload, event in sent]


def test_an_unfinished_frame_is_not_given_out() -> None:
    reader = FrameReader()
    assert reader.feed(b"data: {}") == []
    assert reader.feed(b"\n") == []
    assert reader.feed(b"\n") == [Frame("{}")]


def test_lines_of_data_are_joined() -> None:
    assert FrameReader().feed(b"data: a\ndata:b\nid: 4\n\n") == [Frame("a\nb")]


@pytest.mark.parametrize("text", ["two\nlines", "a\r\n\r\nb", " padded "])
def test_a_comment_is_always_one_line(text: str) -> None:
    made = sse.comment(text)
    assert made.count(b"\n") == 2
    assert b"\r" not in made
    assert FrameReader().feed(made) == []
