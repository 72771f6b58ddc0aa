"""The document of a self-test, without personal data.

Pure. Figures are kept; every text is scrubbed of the given secrets (names, folders) and of all that
looks like a path, an address or an id. Names of software, hardware models and versions stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.cli.selftest.verdicts import SelftestLine

FORMAT = 1
PATTERNS: Sequence[tuple[str, str]] = (
    (r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", "<email>"),
    (r"\b[a-z]+://\S+", "<address>"),
    (r"(?<![\w<])(?:~|/[\w.@+~-]+)(?:/[^\s'\"`,;:)\]]*)+", "<path>"),
    (r"\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b", "<id>"),
    (r"\b(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}\b", "<address>"),
    (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b", "<address>"),
    (r"(?<![\w:])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])", "<address>"),
    (r"\bn[0-9a-f]{10}\b|\binst-[0-9a-f]{8}\b", "<id>"),
    (r"(?i)\bserial(?: number)?:? *\S+", "<serial>"),
)


def document(
    lines: Sequence[SelftestLine], took_s: float, secrets: Mapping[str, str]
) -> dict[str, Any]:
    """Return the whole result. `secrets` maps each text that must not appear to its placeholder."""
    return {
        "selftest": FORMAT,
        "passed": is_passed(lines),
        "seconds": round(took_s, 1),
        "lines": [
            {
                "check": line.check,
                "part": line.part,
                "outcome": line.outcome,
                "text": scrubbed(line.text, secrets),
                "advice": scrubbed(line.advice, secrets),
                "figures": {
                    name: scrubbed(value, secrets) if isinstance(value, str) else value
                    for name, value in line.figures.items()
                },
            }
            for line in lines
        ],
    }


def is_passed(lines: Sequence[SelftestLine]) -> bool:
    """Return whether no line failed."""
    return all(line.outcome != "failed" for line in lines)


def scrubbed(text: str, secrets: Mapping[str, str]) -> str:
    """Return a text without secrets, paths, addresses and ids. Longer secrets are replaced first,
    and only where they stand as whole words."""
    for pattern, placeholder in PATTERNS:
        text = re.sub(pattern, placeholder, text)
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) > 1:
            whole = rf"(?<![\w<]){re.escape(secret)}(?![\w>])"
            text = re.sub(whole, secrets[secret], text, flags=re.IGNORECASE)
    return text
