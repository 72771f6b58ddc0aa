"""Talks to clients about the settings of the node that is asked, or of all: what is in force, what
runs, and changes for those who may do everything."""

from gateway.http.settings.nodes import answer_settings
from gateway.http.settings.resource import (
    SettingsAnswer,
    SettingsBody,
    SettingsOfAll,
    SettingsResource,
)

__all__ = [
    "SettingsAnswer",
    "SettingsBody",
    "SettingsOfAll",
    "SettingsResource",
    "answer_settings",
]
