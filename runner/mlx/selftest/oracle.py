"""Talks to a process of plain mlx-lm (the oracle), which generates the greedy tokens with which the
engine's tokens are compared."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ORACLE_S = 120.0
TOP = 8
"""The number of likeliest tokens that the oracle reports at each step."""
SCRIPT = Path(__file__).with_name("plain.py")


class NoOracle(Exception):
    """Plain mlx-lm did not answer; `args[0]` says why."""


def plain_rows(
    model: Path,
    precision: str,
    prompts: Sequence[Sequence[int]],
    count: int,
    *,
    whole: bool = False,
) -> dict[str, Any]:
    """Let plain mlx-lm generate `count` tokens for each prompt, and return its document (see the
    module `plain`). Raises NoOracle."""
    question = {
        "model": str(model),
        "precision": "float32" if precision == "float32" else "stored",
        "prompts": [list(prompt) for prompt in prompts],
        "count": count,
        "top": TOP,
        "whole": whole,
    }
    command = (sys.executable, "-P", str(SCRIPT))
    try:
        done = subprocess.run(
            command,
            input=json.dumps(question),
            capture_output=True,
            text=True,
            timeout=ORACLE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NoOracle(f"plain mlx-lm did not answer within {ORACLE_S:g} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise NoOracle(f"plain mlx-lm failed: {last}")
    return json.loads(done.stdout.splitlines()[-1])
