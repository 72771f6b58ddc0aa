"""Types lines of the command line's page as in a shell, against a gateway."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from tests.harness.commands import CODE, ROOT, forked
from tests.harness.gateway_testbed import GatewayTestbed

__all__ = ["CODE", "PAGE", "examples", "typed"]
PAGE = ROOT / "docs" / "operations" / "command-line.md"


def examples(verb: str) -> list[str]:
    """Return the lines of a verb's section that are to be typed."""
    section = PAGE.read_text().partition(f"\n## `{verb}`\n")[2].partition("\n## ")[0]
    block = section.split("```")[1]
    return [line.partition("#")[0].strip() for line in block.strip().splitlines()]


def typed(
    made: GatewayTestbed, home: Path, line: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a line as it would be in a shell, against the gateway, with `env` besides."""
    words = shlex.split(line)
    assert words[0] == "shoal"
    own = {"NO_COLOR": "1", "SHOAL_HOME": str(home)}
    return forked(
        "--url", made.url, *words[1:], env={**os.environ, **own, **env}, timeout=60, cwd=home
    )
