"""Who may break which law of the house for now, and why. Every list may only shrink.

An entry names its subject as the law's fault does, says why, and has the figure beyond which it
must not grow. An entry whose subject no longer breaks the law fails the tests: remove it.
`python -m tests.house.breaches` prints every breach as an entry of these lists.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.house.judging import Excused

FLAT = "not in rooms yet"
SAME_WORD = "one of them is to get a word of its own"
WIDE = "not taken apart yet"

FLOORS: Mapping[str, Excused] = {
    "conf files": Excused("small enough to see whole", 7),
    "telemetry files": Excused(
        "six pure files and a composition root: small enough to see whole", 7
    ),
    "worker.transfer files": Excused("small pieces not yet put together", 14),
}
"""Floors with more files or folders than a package or room may have."""

ROOMS_WITHOUT_A_DOOR: Mapping[str, Excused] = {
    "bus.hardware": Excused("no door yet"),
    "bus.links": Excused("no door yet"),
    "bus.membership": Excused("no door yet"),
    "bus.process": Excused("no door yet"),
    "bus.replica": Excused("no door yet"),
    "bus.survey": Excused("no door yet"),
    "bus.switchboard": Excused("no door yet"),
    "bus.wire": Excused("no door yet"),
    "bus.wire.messages": Excused("no door yet"),
    "conf.tiny": Excused("holds a model; its python is a tool"),
    "gateway.cli": Excused("not asked for yet"),
    "gateway.cli.doctor": Excused("no door yet"),
    "gateway.cli.node": Excused("no door yet"),
    "gateway.cli.output": Excused("no door yet"),
    "gateway.cli.verbs": Excused("no door yet"),
    "gateway.cli.verbs.cluster": Excused("no door yet"),
    "gateway.cli.verbs.models": Excused("no door yet"),
    "gateway.cli.verbs.node": Excused("no door yet"),
    "gateway.cluster": Excused("no door yet"),
    "gateway.dialects": Excused("not asked for yet"),
    "gateway.dialects.ollama": Excused("no door yet"),
    "gateway.dialects.openai": Excused("no door yet"),
    "gateway.http": Excused("no door yet"),
    "gateway.http.resources": Excused("no door yet"),
    "gateway.requests": Excused("no door yet"),
    "gateway.runners": Excused("no door yet"),
    "master.decisions": Excused("no door yet"),
    "master.log": Excused("no door yet"),
    "master.placement": Excused("no door yet"),
    "runner.group": Excused("no door yet"),
    "runner.mlx.kv": Excused("no door yet"),
    "runner.mlx.model": Excused("no door yet"),
    "runner.mlx.ranks": Excused("no door yet"),
    "runner.mlx.sampling": Excused("no door yet"),
    "runner.roles": Excused("no door yet"),
    "runner.schedule": Excused("no door yet"),
    "runner.serving": Excused("no door yet"),
    "runner.text": Excused("no door yet"),
    "worker.machine": Excused("no door yet"),
    "worker.models": Excused("no door yet"),
    "worker.slots": Excused("no door yet"),
    "worker.transfer": Excused("no door yet"),
}
"""Rooms whose inside is imported from everywhere."""

NAMES_IN_TWO_MODULES: Mapping[str, Excused] = {
    "Check": Excused("one of them is to get a word of its own", 3),
    "ClusterState": Excused("one of them is to get a word of its own", 2),
    "Ended": Excused("one of them is to get a word of its own", 2),
    "Field": Excused("one of them is to get a word of its own", 2),
    "Finished": Excused("one of them is to get a word of its own", 2),
    "Grammars": Excused("one of them is to get a word of its own", 2),
    "Health": Excused("one of them is to get a word of its own", 2),
    "KeptPrefix": Excused("one of them is to get a word of its own", 2),
    "Line": Excused("one of them is to get a word of its own", 2),
    "Link": Excused("one of them is to get a word of its own", 2),
    "Load": Excused("one of them is to get a word of its own", 2),
    "LoadedModel": Excused("one of them is to get a word of its own", 2),
    "Memory": Excused("one of them is to get a word of its own", 2),
    "Meter": Excused("one of them is to get a word of its own", 2),
    "Owner": Excused("one of them is to get a word of its own", 2),
    "Part": Excused("one of them is to get a word of its own", 3),
    "Peer": Excused("one of them is to get a word of its own", 2),
    "Port": Excused("one of them is to get a word of its own", 2),
    "Reach": Excused("one of them is to get a word of its own", 2),
    "Seat": Excused("one of them is to get a word of its own", 4),
    "Stopped": Excused("one of them is to get a word of its own", 2),
    "Tally": Excused("one of them is to get a word of its own", 2),
    "Target": Excused("one of them is to get a word of its own", 2),
    "View": Excused("one of them is to get a word of its own", 2),
    "Watch": Excused("one of them is to get a word of its own", 2),
}
"""Public class names that stand in two modules; the figure is in how many."""

WIDE_CLASSES: Mapping[str, Excused] = {
    "BusClient": Excused("not taken apart yet", 21),
    "Link": Excused("not taken apart yet", 25),
    "Membership": Excused("not taken apart yet", 32),
    "Peers": Excused("not taken apart yet", 25),
    "Dispatcher": Excused("not taken apart yet", 28),
    "MlxEngine": Excused("not taken apart yet", 21),
    "Scheduler": Excused("not taken apart yet", 28),
    "Serving": Excused("not taken apart yet", 22),
    "Fetch": Excused("not taken apart yet", 28),
}
"""Classes over 20 methods."""

WIDE_CONSTRUCTORS: Mapping[str, Excused] = {
    "RunnerConnection": Excused("not taken apart yet", 10),
    "Measuring": Excused("not taken apart yet", 9),
    "Leading": Excused("not taken apart yet", 9),
    "Serving": Excused("not taken apart yet", 10),
}
"""Classes whose constructor takes over 8 parameters."""

IMPURE_MODULES: Mapping[str, Excused] = {
    "gateway.cli.app": Excused("puts the verbs together", 18),
    "gateway.cli.doctor.doctor": Excused(
        "puts the checks together",
        7,
    ),
    "gateway.cli.node.likeness": Excused("takes the wording of a size from the screen"),
    "gateway.cli.verbs.node.config": Excused(
        "is a verb: what it is called with comes from output.command"
    ),
    "gateway.cluster.options": Excused("names KeyFiles, a type"),
    "gateway.cluster.readings": Excused(
        "reads a clock that it is given",
        6,
    ),
    "gateway.http.routes": Excused(
        "puts the resources together",
        9,
    ),
    "gateway.requests.request": Excused(
        "reads a clock that it is given",
        3,
    ),
    "runner.roles.reports": Excused(
        "names the two shells whose figures it reads",
        2,
    ),
    "runner.text.text": Excused("names the tokenizer, which reads files when it is opened"),
    "worker.transfer.envelopes": Excused("speaks through a Speaker of bus.client"),
}
"""Modules that do not say "Talks to" and read a clock or import what does; figure: how often."""

MISSING_PATHS: Mapping[str, Excused] = {
    "docs/operations/diagnostics.md: gateway/1": Excused("the name of an HTTP process, no path"),
    "docs/operations/diagnostics.md: gateway/2": Excused("the name of an HTTP process, no path"),
}
"""Paths on pages that do not exist, as `page: path`."""

WORDS_TWICE: Mapping[str, Excused] = {
    "stage": Excused("a part of a pipeline, and a step of a request", 2),
}
"""Words with two rows in the glossary."""

WITHOUT_LAYERS: Mapping[str, Excused] = {
    "conf": Excused("has one folder, without python of a process"),
}
"""Packages with rooms whose order no contract holds yet."""
