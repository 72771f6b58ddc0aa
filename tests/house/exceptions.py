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
    "bus files": Excused(FLAT, 44),
    "conf files": Excused("small enough to see whole", 7),
    "gateway files": Excused(FLAT, 30),
    "gateway.cli files": Excused(FLAT, 39),
    "gateway.dialects files": Excused(FLAT, 19),
    "master files": Excused(FLAT, 32),
    "runner files": Excused(FLAT, 41),
    "runner.mlx files": Excused(FLAT, 26),
    "telemetry files": Excused(
        "six pure files and a composition root: small enough to see whole", 7
    ),
    "worker files": Excused(FLAT, 34),
}
"""Floors with more files or folders than a package or room may have."""

ROOMS_WITHOUT_A_DOOR: Mapping[str, Excused] = {
    "bus.messages": Excused("a vocabulary: each of its names is for everybody"),
    "conf.tiny": Excused("holds a model; its python is a tool"),
    "gateway.cli": Excused("not asked for yet"),
    "gateway.dialects": Excused("not asked for yet"),
    "gateway.resources": Excused("not asked for yet"),
}
"""Rooms whose inside is imported from everywhere."""

NAMES_IN_TWO_MODULES: Mapping[str, Excused] = {
    "Check": Excused(SAME_WORD, 3),
    "ClusterState": Excused(SAME_WORD, 2),
    "Ended": Excused(SAME_WORD, 2),
    "Field": Excused(SAME_WORD, 2),
    "Finished": Excused(SAME_WORD, 2),
    "Grammars": Excused(SAME_WORD, 2),
    "Health": Excused(SAME_WORD, 2),
    "Kept": Excused(SAME_WORD, 2),
    "KeptPrefix": Excused(SAME_WORD, 2),
    "Line": Excused(SAME_WORD, 2),
    "Link": Excused(SAME_WORD, 2),
    "Load": Excused(SAME_WORD, 2),
    "LoadedModel": Excused(SAME_WORD, 2),
    "Memory": Excused(SAME_WORD, 2),
    "Meter": Excused(SAME_WORD, 2),
    "Owner": Excused(SAME_WORD, 2),
    "Part": Excused(SAME_WORD, 3),
    "Peer": Excused(SAME_WORD, 2),
    "Peers": Excused(SAME_WORD, 2),
    "Port": Excused(SAME_WORD, 2),
    "Publish": Excused(SAME_WORD, 2),
    "Rank": Excused(SAME_WORD, 2),
    "Reach": Excused(SAME_WORD, 2),
    "Seat": Excused(SAME_WORD, 4),
    "SharedBody": Excused(SAME_WORD, 2),
    "Standing": Excused(SAME_WORD, 2),
    "Stopped": Excused(SAME_WORD, 2),
    "Tally": Excused(SAME_WORD, 2),
    "Target": Excused(SAME_WORD, 2),
    "View": Excused(SAME_WORD, 2),
    "Waiting": Excused(SAME_WORD, 2),
    "Watch": Excused(SAME_WORD, 2),
}
"""Public class names that stand in two modules; the figure is in how many."""

WIDE_CLASSES: Mapping[str, Excused] = {
    "BusClient": Excused(WIDE, 21),
    "Membership": Excused(WIDE, 32),
    "Peers": Excused(WIDE, 25),
    "Link": Excused(WIDE, 25),
    "Dispatcher": Excused(WIDE, 28),
    "Candidate": Excused(WIDE, 28),
    "Office": Excused(WIDE, 23),
    "Master": Excused(WIDE, 23),
    "MlxEngine": Excused(WIDE, 21),
    "Scheduler": Excused(WIDE, 28),
    "Serving": Excused(WIDE, 22),
    "Fetch": Excused(WIDE, 28),
}
"""Classes over 20 methods."""

WIDE_CONSTRUCTORS: Mapping[str, Excused] = {
    "RunnerConnection": Excused(WIDE, 10),
    "Leading": Excused(WIDE, 9),
    "Measuring": Excused(WIDE, 9),
    "Serving": Excused(WIDE, 10),
}
"""Classes whose constructor takes over 8 parameters."""

IMPURE_MODULES: Mapping[str, Excused] = {
    "gateway.cli.alignment": Excused("takes the wording of a size from the screen"),
    "gateway.cli.app": Excused("puts the verbs together", 18),
    "gateway.cli.config": Excused("is a verb: what it is called with comes from gateway.cli.verb"),
    "gateway.cli.doctor": Excused("puts the checks together", 7),
    "gateway.options": Excused("names KeyFiles, a type"),
    "gateway.routes": Excused("puts the resources together", 9),
    "gateway.ticket": Excused("reads a clock that it is given", 3),
    "gateway.view": Excused("reads a clock that it is given", 6),
    "runner.reports": Excused("names the two shells whose figures it reads", 2),
    "runner.text": Excused("names the tokenizer, which reads files when it is opened"),
    "worker.voice": Excused("speaks through a Speaker of bus.client"),
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
    "bus": Excused(FLAT),
    "runner": Excused(FLAT),
    "gateway": Excused(FLAT),
    "conf": Excused("has one folder, without python of a process"),
}
"""Packages with rooms whose order no contract holds yet."""
