"""What is quoted of a llama-server that has ended."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bus.models.gguf import GgufFacts
from runner.llama.child import Child, ChildEnded
from runner.llama.launch import Launch

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux has served engines"
)
FACTS = GgufFacts("llama", 1, 8, 3, 8, (4,), "F16", 1, 1, "")
LOAD = (
    "0.00.010 I srv load_model: loading model",
    "0.00.018 E llama_model_load: error loading model: unknown model architecture: 'x'",
    "0.00.019 E srv load_model: failed to load model, 'm.gguf'",
    "0.00.020 I srv operator(): cleaning up before exit...",
)


def words(folder: Path, lines: tuple[str, ...], *, is_ready: bool = False) -> str:
    """Return what a child that prints these lines and exits with 1 is said to have ended with."""
    code = f"print({chr(10).join(lines)!r}); raise SystemExit(1)"
    launch = Launch(folder / "m.gguf", folder / "s.sock", 1, 8, 1, FACTS)
    child = Child([sys.executable, "-I", "-S", "-c", code], launch)
    child.is_ready = is_ready
    try:
        with pytest.raises(ChildEnded) as raised:
            while True:
                child.check()
    finally:
        child.end()
    return str(raised.value).removeprefix("llama-server ended with exit code 1: ")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            LOAD,
            "llama_model_load: error loading model: unknown model architecture: 'x'; a later "
            "llama-server may know it",
        ),
        (
            tuple(line.partition(" ")[2][2:] for line in LOAD),
            "llama_model_load: error loading model: unknown model architecture: 'x'; a later "
            "llama-server may know it",
        ),
        (
            ("0.1 E llama_model_load: error loading model: tensor 'a' not found",),
            "llama_model_load: error loading model: tensor 'a' not found; download the file again, "
            "or use another quantisation",
        ),
        (
            ("E alloc_buffer: failed to allocate buffer of size 5", "error: no"),
            "alloc_buffer: failed to allocate buffer of size 5; use a smaller quantisation, or a "
            "shorter context",
        ),
        (
            ("error: invalid argument: --kv-unified",),
            "error: invalid argument: --kv-unified; shoal needs build 7,500 or later of "
            "llama-server",
        ),
        (
            ("terminate called after throwing", "  what():  Resource temporarily unavailable"),
            "what():  Resource temporarily unavailable; a limit of the system is too low: memory, "
            "threads or processes",
        ),
        (("hello", "\x1b[2Jbye"), "?[2Jbye"),
    ],
)
def test_the_cause_of_a_load_that_failed_is_quoted_with_what_to_do(
    tmp_path: Path, lines: tuple[str, ...], said: str
) -> None:
    assert words(tmp_path, lines) == said


def test_of_a_child_that_has_served_the_last_trouble_is_quoted(tmp_path: Path) -> None:
    lines = ("0.1 E srv: task error: old", "0.2 I ok", "GGML_ASSERT(x) failed", "0.3 I bye")
    assert words(tmp_path, lines, is_ready=True) == "GGML_ASSERT(x) failed"
    assert words(tmp_path, ("0.1 I slot launched",), is_ready=True).endswith("exit code 1")
