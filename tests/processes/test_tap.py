"""The operator's stethoscope on a live node: our own, and the five lines of the docs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from bus.switchboard.tap_client import listen
from conf.settings import load_settings
from tests.harness.nodes import ROOT, Node

PAGE = ROOT / "docs" / "operations" / "diagnostics.md"


def test_shoal_tap_shows_events_as_they_happen(node: Node) -> None:
    command = [sys.executable, "-P", "-c", "from gateway.cli.app import main; main()"]
    tap = subprocess.Popen(
        [*command, "tap", "reading.*", "--count", "2", "--json"],
        env={**node.env, "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    out, said = tap.communicate(timeout=60)
    assert tap.returncode == 0, said
    rows = [json.loads(line) for line in out.splitlines()]
    assert len(rows) == 2
    assert all(row["topic"].startswith("reading.") and row["message"] for row in rows)


def test_the_five_lines_of_the_docs_show_live_traffic(node: Node, tmp_path: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line for line in script.splitlines() if line and not line.startswith("import")]
    assert len(lines) == 5
    path = tmp_path / "tap.py"
    path.write_text(script.replace('"event."', '"term"'))
    runtime = load_settings(home=node.home).paths.runtime
    life = subprocess.Popen(
        [sys.executable, "-u", str(path), str(runtime)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert life.stdout is not None
        line = life.stdout.readline()
    finally:
        life.kill()
        life.communicate()
    assert "term_heartbeat" in line


def test_tokens_are_seen_only_while_somebody_taps_them(node: Node) -> None:
    endpoints = load_settings(home=node.home).endpoints
    before = listen(endpoints, "*", patience_s=0.5)
    next(before)
    stream = node.stream("hello", max_tokens=12, ignore_eos=True).wait(60)
    assert stream.done
    topics: list[str] = []
    while len(topics) < 8:
        seen = next(before)
        if seen is not None:
            topics.append(seen.topic)
    before.close()
    assert not [topic for topic in topics if topic.startswith("token")]

    tap = listen(endpoints, "token.*", patience_s=1.0)
    next(tap)
    text = ""
    answer = node.stream("hello", max_tokens=12, ignore_eos=True).wait(60)
    while (seen := next(tap)) is not None:
        text += seen.fields["text"]
    tap.close()
    assert answer.text
    assert text.strip().endswith(answer.text.strip()[-3:])
