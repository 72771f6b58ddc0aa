"""Talks to other switchboards to measure the links to them: while they are idle, one at a time.

`probe_schedule` and `link_probe`, which decide, are pure; `link_survey` is their shell.
"""

from bus.survey.link_survey import LinkSurvey, tell_unmeasured
from bus.survey.probe_schedule import busy_nodes

__all__ = ["LinkSurvey", "busy_nodes", "tell_unmeasured"]
