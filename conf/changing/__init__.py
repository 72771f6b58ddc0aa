"""Talks to the disk: changes single settings in `shoal.toml` and keeps its comments; describes each
setting, its value and the running value. It never writes a file that a node would refuse."""

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
