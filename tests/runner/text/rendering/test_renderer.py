"""What a stranger's template may take, and that it takes no more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from runner.text.rendering import (
    Renderer,
    RendererNotReady,
    RenderLimits,
    TemplateError,
    TemplateStopped,
    sandbox,
)
from runner.text.rendering import renderer as renderer_module

CHAT = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)
SHORT = RenderLimits(processor_s=0.3, wall_s=1.0)
ROOT = Path(__file__).resolve().parents[4]


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


@pytest.fixture
def renderer() -> Iterator[Renderer]:
    made = Renderer(SHORT)
    yield made
    made.close()


@pytest.fixture(scope="module")
def lasting() -> Iterator[Renderer]:
    """For what leaves its process as it was."""
    made = Renderer(SHORT)
    yield made
    made.close()


@pytest.mark.parametrize("text", ["hi", "", "é日🐟", "\ud800", "x" * 3_000_000, "\0\r\n"])
def test_a_text_comes_back_as_it_was_given(lasting: Renderer, text: str) -> None:
    assert lasting.render(CHAT, said(text)) == f"<user>{text}"


def test_one_process_serves_them_all_and_is_there_only_once_it_is_asked(
    renderer: Renderer,
) -> None:
    assert renderer.pid is None
    renderer.render(CHAT, said("one"))
    pid = renderer.pid
    renderer.render("{{ 1 + 1 }}", {})
    assert renderer.pid == pid and pid is not None
    renderer.close()
    assert renderer.pid is None and not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no system message') }}", "no system message"),
        ("{{ ", "unexpected"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "recursion"),
        ("{{ ''.__class__.mro() }}", "unsafe"),
        ("{{ namespace(_x=1) }}", "_x"),
    ],
)
def test_a_template_refuses_in_its_own_words(lasting: Renderer, template: str, words: str) -> None:
    with pytest.raises(TemplateError, match=words):
        lasting.render(template, {})
    assert lasting.render(CHAT, said("well")) == "<user>well"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (ENDLESS, "took more than"),
        ("{{ x ** (x ** x) }}", "took more than"),
        ("{{ 'a' * 3000000000 }}", "needed more than 128 MiB of memory"),
        ("{{ a * 3000000000 }}", "needed more than 128 MiB of memory"),
        ("{{ a.center(2000000000) }}", "needed more than 128 MiB of memory"),
        ("{{ '%2000000000d' % 1 }}", "needed more than 128 MiB of memory"),
        ("{{ a * 20000000 }}", "the rendered text is larger than 8 MiB"),
    ],
    ids=("loops", "power", "folded", "times", "centre", "format", "text"),
)
def test_a_template_that_takes_too_much_is_stopped_and_the_next_one_is_well(
    renderer: Renderer, template: str, words: str
) -> None:
    began = time.monotonic()
    with pytest.raises(TemplateStopped, match=words):
        renderer.render(template, {"a": "a", "x": 12})
    assert time.monotonic() - began < 10
    assert renderer.pid is None
    assert renderer.render(CHAT, said("well")) == "<user>well"


class Unlimited:
    """The questions of a renderer whose system keeps no limit of memory."""

    def pack(self, size: int, memory: int, text: int, seconds: float) -> bytes:
        return sandbox.QUESTION.pack(size, memory * 1000, text, seconds)


def test_memory_is_watched_where_the_system_keeps_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer_module, "QUESTION", Unlimited())
    watched = Renderer(RenderLimits(processor_s=20, wall_s=60, memory_bytes=64 << 20))
    with pytest.raises(TemplateStopped, match="used more than 64 MiB of memory"):
        watched.render("{% set a = 'a' * 90000000 %}" + ENDLESS, {})
    watched.close()


def test_after_one_was_stopped_the_next_has_less_time_until_one_ends_well() -> None:
    renderer = Renderer(RenderLimits(processor_s=0.2, wall_s=60))
    shares = []
    for template in (ENDLESS, ENDLESS, ENDLESS, ENDLESS, "well", ENDLESS):
        try:
            renderer.render(template, {})
        except TemplateStopped as stopped:
            shares.append(str(stopped).split()[5])
    renderer.close()
    assert shares == ["0.2", "0.1", "0.05", "0.05", "0.2"]


def test_a_process_that_was_killed_is_replaced(renderer: Renderer) -> None:
    renderer.render(CHAT, said("one"))
    first = renderer.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(first)], timeout=5)
    assert renderer.render(CHAT, said("two")) == "<user>two"
    assert renderer.pid != first


def test_no_key_reaches_a_template(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_API_KEYS", "secret")
    monkeypatch.setenv("LD_PRELOAD", "")
    renderer.render(CHAT, said("one"))
    given = psutil.Process(renderer.pid).environ()
    assert "SHOAL_API_KEYS" not in given and "LD_PRELOAD" not in given


@pytest.mark.parametrize("template", ["idle", ENDLESS])
def test_it_does_not_outlive_its_runner(template: str) -> None:
    code = (
        "import sys; from runner.text.rendering import Renderer; made = Renderer(); "
        "made.render('', {}); print(made.pid, flush=True); "
        "made.render(sys.argv[1], {}); sys.stdin.read()"
    )
    runner = subprocess.Popen(
        [sys.executable, "-c", code, template],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert runner.stdin is not None and runner.stdout is not None
    with runner.stdin, runner.stdout:
        rendering = psutil.Process(int(runner.stdout.readline()))
        time.sleep(0.2)
        runner.kill()
        runner.wait()
        gone, _ = psutil.wait_procs([rendering], timeout=60)
    assert gone or rendering.status() == psutil.STATUS_ZOMBIE


def test_a_process_that_is_not_ready_in_time_is_ours_to_answer_for(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(renderer_module, "STARTS_S", 0.0)
        for _ in range(2):
            with pytest.raises(RendererNotReady, match=r"renders chat templates was not ready"):
                renderer.render(CHAT, said("hi"))
            assert renderer.pid is None
    assert renderer.render(CHAT, said("hi")) == "<user>hi", "with all of its time"
