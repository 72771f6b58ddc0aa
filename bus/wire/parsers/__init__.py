"""The words by which a model's card says how its output is read. Pure, and of no other module: the
runner's readers of text load nothing for them.
"""

from bus.wire.parsers.words import (
    LIBRARY_TOOL_PARSERS,
    NONE,
    REASONING_PARSERS,
    THINKING_MARKS,
    TOOL_PARSERS,
)

__all__ = [
    "LIBRARY_TOOL_PARSERS",
    "NONE",
    "REASONING_PARSERS",
    "THINKING_MARKS",
    "TOOL_PARSERS",
]
