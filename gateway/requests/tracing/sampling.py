"""Which requests are traced.

Pure: lots are drawn by what is given. Traced are those whose client asks for it (`x_trace`) or
records a trace of its own that they are part of (`traceparent`), and a share of the others: what
the cluster says (`PUT /v1/tracing`) goes before the node's setting. Nothing is traced where traces
are neither kept nor exported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from gateway.requests.tracing.context import TraceParent

if TYPE_CHECKING:
    from gateway.cluster.options import Options

TraceChoice = Literal["", "asked", "parent", "sampled"]
"""Why a request is traced; empty: it is not."""


class TraceSampler:
    """Chooses for one HTTP process. `of_cluster` returns the share that the cluster says, None
    while it says none; `own` is this node's setting; `keeps`: traces go somewhere. `draw` returns
    a number from 0 to 1, any as likely as another."""

    def __init__(
        self,
        of_cluster: Callable[[], float | None],
        own: float,
        *,
        keeps: bool,
        draw: Callable[[], float],
    ) -> None:
        self.own = own
        self.keeps = keeps
        self._of_cluster = of_cluster
        self._draw = draw

    @property
    def ratio(self) -> float:
        """Return the share of requests that is traced unasked."""
        said = self._of_cluster()
        return self.own if said is None else said

    def choose(self, *, asked: bool, parent: TraceParent | None = None) -> TraceChoice:
        """Return whether a request is traced, and why; `parent` is its client's span."""
        if not self.keeps:
            return ""
        if asked:
            return "asked"
        if parent is not None and parent.sampled:
            return "parent"
        ratio = self.ratio
        return "sampled" if ratio > 0.0 and self._draw() < ratio else ""


def sampler_of(
    options: Options, of_cluster: Callable[[], float | None], draw: Callable[[], float]
) -> TraceSampler:
    """Return what chooses by these options."""
    return TraceSampler(of_cluster, options.trace_sample, keeps=options.traces, draw=draw)
