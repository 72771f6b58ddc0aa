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

FLOORS: Mapping[str, Excused] = {}
"""Floors with more files or folders than a package or room may have."""

ROOMS_WITHOUT_A_DOOR: Mapping[str, Excused] = {
    "bus.hardware": Excused("no door yet"),
    "bus.links": Excused("no door yet"),
    "bus.membership": Excused("no door yet"),
    "bus.process": Excused("no door yet"),
    "bus.replica": Excused("no door yet"),
    "bus.wire": Excused("no door yet"),
    "bus.wire.messages": Excused("no door yet"),
    "conf.tiny": Excused("holds a model and no python"),
    "gateway.cli": Excused("not asked for yet"),
    "gateway.cli.doctor": Excused("no door yet"),
    "gateway.cli.node": Excused("no door yet"),
    "gateway.cli.output": Excused("no door yet"),
    "gateway.cli.verbs": Excused("no door yet"),
    "gateway.cli.verbs.cluster": Excused("no door yet"),
    "gateway.cli.verbs.models": Excused("no door yet"),
    "gateway.cli.verbs.node": Excused("no door yet"),
    "gateway.cli.verbs.store": Excused("no door yet"),
    "gateway.dialects": Excused("not asked for yet"),
    "gateway.dialects.ollama": Excused("no door yet"),
    "gateway.dialects.openai": Excused("no door yet"),
    "gateway.http": Excused("no door yet"),
    "gateway.http.resources": Excused("no door yet"),
    "gateway.requests": Excused("no door yet"),
    "gateway.runners": Excused("no door yet"),
    "master.log": Excused("no door yet"),
    "runner.group": Excused("no door yet"),
    "runner.mlx.model": Excused("no door yet"),
    "runner.mlx.ranks": Excused("no door yet"),
    "runner.roles": Excused("no door yet"),
    "worker.machine": Excused("no door yet"),
    "worker.models": Excused("no door yet"),
    "worker.slots": Excused("no door yet"),
    "worker.transfer": Excused("no door yet"),
}
"""Rooms whose inside is imported from everywhere."""

NAMES_IN_TWO_MODULES: Mapping[str, Excused] = {}
"""Public class names that stand in two modules; the figure is in how many."""

WIDE_CLASSES: Mapping[str, Excused] = {}
"""Classes over 20 methods."""

WIDE_CONSTRUCTORS: Mapping[str, Excused] = {}
"""Classes whose constructor takes over 8 parameters."""

IMPURE_MODULES: Mapping[str, Excused] = {
    "runner.text.text": Excused("names the tokenizer, which reads files when it is opened"),
}
"""Modules that do not say "Talks to" and read a clock or import what does; figure: how often."""

DOCSTRINGS: Mapping[str, Excused] = {}
"""Public functions without a docstring, and docstrings in riddles."""

PRIVATE_NAMES: Mapping[str, Excused] = {
    "gateway/view/metrics.py: a library": Excused("a histogram's sum has no public name"),
    "runner/text/opening/alone.py: a library": Excused("mlx-lm's, used beside runner/library.py"),
    "runner/text/opening/by_library.py: a library": Excused("mlx-lm's, as in alone.py"),
}
"""Files with private names of a library that another file holds, as `path: library`."""

MISSING_PATHS: Mapping[str, Excused] = {}
"""Paths on pages that do not exist, as `page: path`."""

WORDS_TWICE: Mapping[str, Excused] = {}
"""Words with two rows in the glossary."""

WITHOUT_LAYERS: Mapping[str, Excused] = {}
"""Packages with rooms whose order no contract holds yet."""
