"""Types lines of the command line's page as in a shell, against a gateway."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.harness.gateway_testbed import ROOT, GatewayTestbed

CODE = "import sys; from gateway.cli.app import main; sys.exit(main())"
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
    own = {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "SHOAL_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-P", "-c", CODE, "--url", made.url, *words[1:]],
        cwd=home,
        env={**os.environ, **own, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
