"""Chooses the requests to trace.

Pure: random numbers come from `draw`. A request is traced if its client asks for it (`x_trace`) or
records a trace around it (`traceparent`). A share of the other requests is traced at random: the
cluster's (`PUT /v1/tracing`) if it is set, else the node's. No request is traced if the node
neither stores nor exports traces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from gateway.tracing.context import TraceParent

if TYPE_CHECKING:
    from gateway.view.options import Options

TraceChoice = Literal["", "asked", "parent", "sampled"]
"""Why a request is traced; empty: it is not."""


class TraceSampler:
    """Chooses the traced requests of one HTTP process. `of_cluster` returns the share of traced
    requests that is set for the cluster, or None; `own` is this node's setting. `keeps`: the node
    stores or exports traces. `draw` returns a uniform random number from 0 to 1."""

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
        """Return the share of requests traced at random."""
        share = self._of_cluster()
        return self.own if share is None else share

    def choose(self, *, by_client: bool, parent: TraceParent | None = None) -> TraceChoice:
        """Return why a request is traced; empty if it is not. `by_client`: the client asks for a
        trace. `parent`: the client's span, if any."""
        if not self.keeps:
            return ""
        if by_client:
            return "asked"
        if parent is not None and parent.sampled:
            return "parent"
        ratio = self.ratio
        return "sampled" if ratio > 0.0 and self._draw() < ratio else ""


def sampler_of(
    options: Options, of_cluster: Callable[[], float | None], draw: Callable[[], float]
) -> TraceSampler:
    """Return the sampler. It chooses no request if the options neither store nor export traces."""
    return TraceSampler(of_cluster, options.trace_sample, keeps=options.traces, draw=draw)
