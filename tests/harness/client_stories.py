"""Runs a client's story, a script of `tests/clients/stories/`, in the client's own environment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.harness.client_environments import client_python
from tests.harness.nodes import ROOT

STORIES = ROOT / "tests" / "clients" / "stories"
QUIET = {
    "DO_NOT_TRACK": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
}
"""So that no client asks anything of the internet."""

MOST_S = 1800.0 if os.environ.get("SHOAL_PROVE") else 600.0

Row = dict[str, Any]


def tell_story(name: str, *, url: str, model: str, folder: Path) -> list[Row]:
    """Return a row for each call of a client's story, run with `folder` as its home and working
    directory. Fails with what the story said where it did not come to its end; raises
    `Unavailable` where its environment cannot be made here."""
    python = client_python(name)
    script = STORIES / f"{name.replace('-', '_')}_story.py"
    done = subprocess.run(
        [str(python), str(script), "--url", url, "--model", model],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **QUIET},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=MOST_S,
        check=False,
    )
    print(done.stderr[-20_000:])
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"client"')]


def failed(rows: list[Row]) -> list[str]:
    """Return which calls failed, with their reasons."""
    return [f"{row['call']}: {row['why']}" for row in rows if not row["ok"]]
