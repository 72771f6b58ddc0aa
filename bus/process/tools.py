"""Talks to the operating system: asks its tools, and takes silence for an answer; asks what the
number of an error means."""

from __future__ import annotations

import os
import re
import subprocess

ASK_S = 5.0
"""What a tool may take to answer, unless it is known to be slow."""
NUMBERED = re.compile(r"\b(?:errno[ =:]+|error: )(\d+)\b")


def asked(*command: str, timeout_s: float = ASK_S) -> str:
    """Return what a tool of the system prints; nothing where there is none or it takes too long."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def in_words(text: str) -> str:
    """Return a library's message with what the system calls its error numbers in their place."""
    return NUMBERED.sub(lambda found: os.strerror(int(found[1])), text)
