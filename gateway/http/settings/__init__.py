"""Talks to clients about settings: shows and changes those of this node or of all nodes, and lists
the tasks of its `tasks.toml`."""

from gateway.http.settings.nodes import answer_settings
from gateway.http.settings.resource import (
    SettingsAnswer,
    SettingsBody,
    SettingsOfAll,
    SettingsResource,
)
from gateway.http.settings.tasks import (
    ConfigAnswer,
    ConfigBody,
    ConfigResource,
    TaskList,
    TasksAnswer,
)

__all__ = [
    "ConfigAnswer",
    "ConfigBody",
    "ConfigResource",
    "SettingsAnswer",
    "SettingsBody",
    "SettingsOfAll",
    "SettingsResource",
    "TaskList",
    "TasksAnswer",
    "answer_settings",
]
