"""Talks to the disk: `shoal.toml` changed a setting at a time, its comments kept; and what each
setting is, what is in force and what runs. Nothing is written that a node would not take."""

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
