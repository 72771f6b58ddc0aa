"""Talks to the disk: changes single settings in `shoal.toml`, and describes all settings.

A change keeps the comments of the file, and never writes a file that a node would refuse. The
description of a setting has its meaning, its value, and the value that the node still runs with.
"""

from conf.changing.file import (
    change,
    check,
    differing,
    readable_key,
    replace,
    text_of,
    write_first,
)
from conf.changing.told import HOT, SettingsTold

__all__ = [
    "HOT",
    "SettingsTold",
    "change",
    "check",
    "differing",
    "readable_key",
    "replace",
    "text_of",
    "write_first",
]
