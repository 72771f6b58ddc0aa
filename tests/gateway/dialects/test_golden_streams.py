"""Every stream is, byte for byte, the one that was read and kept."""

from __future__ import annotations

import json

import pytest

from gateway.dialects.api_table import Generates
from gateway.dialects.registry import APIS
from tests.gateway.dialects.golden_streams import CASES, DIALECTS, FOLDER, streams
from tests.harness.sse_frames import FrameReader

STREAMS = dict(streams())


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_the_one_that_was_kept(name: str) -> None:
    assert STREAMS[name].decode() == (FOLDER / name).read_bytes().decode()


def test_every_kept_stream_is_of_a_dialect_and_a_case() -> None:
    kept = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    assert kept == set(STREAMS)


def test_every_dialect_that_streams_has_its_streams() -> None:
    streaming = {
        endpoint.dialect.name
        for api in APIS
        for endpoint in api.endpoints
        if isinstance(endpoint, Generates)
    }
    assert streaming == {dialect.name for dialect, _ in DIALECTS}
    told = {name.partition("/")[0]: set[str]() for name in STREAMS}
    for name in STREAMS:
        told[name.partition("/")[0]].add(name.partition("/")[2].removesuffix(".txt"))
    assert set(told) == streaming
    assert all(cases <= set(CASES) and len(cases) >= 6 for cases in told.values())


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_read_as_events_or_lines_of_json(name: str) -> None:
    stream = STREAMS[name]
    if name.startswith("ollama"):
        texts = stream.decode().removesuffix("\n").split("\n")
    else:
        texts = [frame.data for frame in FrameReader().feed(stream)]
        assert stream.endswith(b"\n\n")
    if name.startswith(("openai_chat", "openai_completions")):
        assert texts.pop() == "[DONE]"
    assert texts and all(isinstance(json.loads(text), dict) for text in texts)
