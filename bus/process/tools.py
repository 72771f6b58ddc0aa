"""Talks to the operating system: runs its tools with a timeout, and explains error numbers."""

from __future__ import annotations

import os
import re
import subprocess

ASK_S = 5.0
"""Default timeout of a tool."""
NUMBERED = re.compile(r"\b(?:errno[ =:]+|error: )(\d+)\b")


def asked(*command: str, timeout_s: float = ASK_S) -> str:
    """Return the output of a system tool; empty if it is missing or times out."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def in_words(text: str) -> str:
    """Return a library's error message with each error number replaced by the system's text for
    it."""
    return NUMBERED.sub(lambda match: os.strerror(int(match[1])), text)
