"""Talks to other switchboards: measures the links to other nodes, one link at a time, while idle.

`probe_schedule` and `link_probe` decide and are pure; `link_survey` sends and receives.
"""

from bus.survey.link_survey import LinkSurvey, tell_unmeasured
from bus.survey.probe_schedule import busy_nodes

__all__ = ["LinkSurvey", "busy_nodes", "tell_unmeasured"]
