"""Talks to other switchboards to measure the links to them, one at a time and only while idle.

`probe_schedule` and `link_probe` decide and are pure; `link_survey` is their shell.
"""

from bus.survey.link_survey import LinkSurvey, tell_unmeasured
from bus.survey.probe_schedule import busy_nodes

__all__ = ["LinkSurvey", "busy_nodes", "tell_unmeasured"]
