"""Talks to Prometheus: the counts of the gateway, summed over its HTTP processes, and the runners'
readings.

The client library's multiprocess mode keeps the values of each process in files of one folder.
`earlier_counts` chooses the folder before the first `Metrics` is made. Values of runners come from
their readings at the time of the scrape.
"""

# pyright: reportUnknownMemberType=false
# (prometheus_client's collectors are not typed throughout)
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, cast

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from bus.links.traffic import Crossed
from bus.process.stalls import BOUNDS_S, StallCounts
from bus.wire.accelerators import HardwareReading
from bus.wire.messages.readings import DemandReading, LinkReading, RunnerReading
from gateway.view.counters import DRAFTS, ITL_BOUNDS_S, Counters, HistogramTotals, NodeTotals
from gateway.view.runner_metrics import RunnerMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FLUSH_S = 1.0
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)


class BulkHistogram(Histogram):
    """A histogram to which the counts of whole buckets can be added. It is for values that are
    observed for every token."""

    def add(self, counts: Iterable[int], total: float) -> None:
        """Add `counts`, one for each bucket (the last is infinity), and their sum."""
        for bucket, count in zip(cast(list[Any], self._buckets), counts, strict=True):
            if count:
                bucket.inc(count)
        self._sum.inc(total)


class Metrics:
    """The counts of one HTTP process, and the metrics text of all of them."""

    def __init__(self, counters: Counters) -> None:
        own = CollectorRegistry()
        by_model, by_drafter = ("model_name",), ("model_name", "drafter")
        self._counters = counters
        counter = partial(Counter, registry=own)
        seconds = partial(Histogram, labelnames=by_model, buckets=_SECONDS, registry=own)
        self._requests = counter(
            "shoal_requests", "Requests ended, by outcome.", ("model_name", "outcome")
        )
        self._prompt = counter(
            "shoal_prompt_tokens", "Prompt tokens of accepted requests.", by_model
        )
        self._generated = counter("shoal_generation_tokens", "Tokens generated.", by_model)
        self._ttft = seconds(
            "shoal_time_to_first_token_seconds", "From a request's arrival to its first token."
        )
        self._e2e = seconds(
            "shoal_e2e_request_latency_seconds", "From a request's arrival to its end."
        )
        self._queued = seconds(
            "shoal_request_queue_time_seconds",
            "From a request's arrival until a runner started it; finished requests only.",
        )
        self._loads = seconds(
            "shoal_model_load_seconds",
            "From the decision to load an instance until it was ready, reported by its lead node.",
        )
        self._itl = BulkHistogram(
            "shoal_inter_token_latency_seconds",
            "Between tokens of one request, as they arrive at the gateway.",
            by_model,
            buckets=ITL_BOUNDS_S,
            registry=own,
        )
        self._drafts = [counter(f"shoal_spec_decode_{n}", text, by_drafter) for n, text in DRAFTS]
        self._losses = counter(
            "shoal_runner_losses",
            "Requests whose runner was lost while it reported their tokens, by outcome.",
            ("model_name", "outcome"),
        )
        self._splits = counter(
            "shoal_prompt_splits",
            "Prompts that another node could compute (prefill_on), by outcome.",
            ("model_name", "outcome"),
        )
        self._faults = counter("shoal_http_errors", "HTTP answers of 400 and above.", ("status",))
        self._exported = counter(
            "shoal_otlp_spans",
            "Spans for the trace collector: accepted, refused, or dropped.",
            ("outcome",),
        )
        self._spilled = counter(
            "shoal_spilled_requests",
            "Requests that left the queue of a model for a provider's model, by outcome.",
            ("model_name", "provider_model", "outcome"),
        )
        self._ignored = counter(
            "shoal_ignored_fields",
            "Ignored request fields; `other`: in no published schema.",
            ("dialect", "field"),
        )

    def spilled(self, model: str, provider: str, outcome: str) -> None:
        """Count a request that left the queue of `model` for a provider's model. `outcome`:
        answered, returned to the queue, or failed."""
        self._spilled.labels(model, provider, outcome).inc()

    def exported(self, outcome: str, spans: int) -> None:
        """Count spans by the outcome of their export. Any thread may call it."""
        if spans:
            self._exported.labels(outcome).inc(spans)

    def ended(
        self, model: str, outcome: str, prompt_tokens: int, ttft_s: float | None, seconds: float
    ) -> None:
        """Count a request that has ended. `ttft_s` and `seconds` count from its arrival."""
        self._requests.labels(model, outcome).inc()
        if prompt_tokens:
            self._prompt.labels(model).inc(prompt_tokens)
        if ttft_s is not None:
            self._ttft.labels(model).observe(ttft_s)
        self._e2e.labels(model).observe(seconds)

    def queued(self, model: str, seconds: float) -> None:
        """Count the time that a request waited before a runner started it."""
        self._queued.labels(model).observe(seconds)

    def fault(self, status: int) -> None:
        """Count an HTTP error response."""
        self._faults.labels(str(status)).inc()

    def ignored(self, dialect: str, fields: Mapping[str, int]) -> None:
        """Count ignored request fields. `fields` has the count of each label (`field`)."""
        for field, count in fields.items():
            self._ignored.labels(dialect, field).inc(count)

    def flush(self) -> None:
        """Add the tokens counted since the last flush to the files that a scrape reads."""
        for model, counters in self._counters.drain().items():
            self._generated.labels(model).inc(counters.tokens)
            self._itl.labels(model).add(counters.itl_counts, counters.itl_sum_s)
            for drafter, counts in counters.draft_counts():
                for family, count in zip(self._drafts, counts, strict=True):
                    family.labels(model, drafter).inc(count)
            for outcome, count in counters.losses.items():
                self._losses.labels(model, outcome).inc(count)
            for outcome, count in counters.splits.items():
                self._splits.labels(model, outcome).inc(count)
            for seconds in counters.loads_s:
                self._loads.labels(model).observe(seconds)

    def render(
        self,
        runners: list[RunnerReading],
        demands: list[DemandReading],
        stalls: Mapping[str, StallCounts],
        sensors: HardwareReading | None = None,
        links: LinkReading | None = None,
        traffic: NodeTraffic | None = None,
    ) -> bytes:
        """Return the text of this node's metrics for Prometheus: HTTP processes, runners, demand,
        event loops by process, sensors, measured links and traffic over links."""
        self.flush()
        scraped = CollectorRegistry()
        MultiProcessCollector(scraped)
        scraped.register(RunnerMetrics(runners, demands))
        scraped.register(_Loops(stalls))
        if sensors is not None:
            scraped.register(_Sensors(sensors))
        if links is not None:
            scraped.register(_Links(links))
        if traffic is not None:
            scraped.register(traffic)
        return generate_latest(scraped)


def read_totals() -> NodeTotals:
    """Return the totals of all HTTP processes, from their files. Counts of tokens are as of each
    process's last flush. Reads files: call it in a thread."""
    scraped = CollectorRegistry()
    MultiProcessCollector(scraped)
    values: defaultdict[str, float] = defaultdict(float)
    outcomes: defaultdict[str, int] = defaultdict(int)
    up_to: defaultdict[str, defaultdict[float, float]] = defaultdict(lambda: defaultdict(float))
    for family in scraped.collect():
        for sample in family.samples:
            values[sample.name] += sample.value
            if sample.name == "shoal_requests_total":
                outcomes[sample.labels["outcome"]] += int(sample.value)
            elif sample.name.endswith("_bucket"):
                up_to[family.name][float(sample.labels["le"])] += sample.value

    def histogram(name: str) -> HistogramTotals:
        bounds = tuple(sorted(up_to[name]))
        counts = (b - a for a, b in pairwise((0, *(int(up_to[name][at]) for at in bounds))))
        return HistogramTotals(bounds, tuple(counts), values[f"{name}_sum"])

    return NodeTotals(
        requests=dict(outcomes),
        prompt_tokens=int(values["shoal_prompt_tokens_total"]),
        generation_tokens=int(values["shoal_generation_tokens_total"]),
        http_errors=int(values["shoal_http_errors_total"]),
        ttft_s=histogram("shoal_time_to_first_token_seconds"),
        itl_s=histogram("shoal_inter_token_latency_seconds"),
        e2e_s=histogram("shoal_e2e_request_latency_seconds"),
    )


@dataclass(frozen=True, eq=False)
class _Loops(Collector):
    """Stalls of the event loops of this node's processes."""

    stalls: Mapping[str, StallCounts]

    def collect(self) -> Iterator[Metric]:
        """Yield a histogram of the stalls, and the longest stall of each process."""
        help_text = "Event loop iterations of 10 ms or more, waits for a core excluded."
        family = HistogramMetricFamily("shoal_loop_stall_seconds", help_text, labels=("process",))
        longest = GaugeMetricFamily(
            "shoal_loop_stall_longest_seconds", "Longest loop iteration.", labels=("process",)
        )
        bounds = (*map(str, BOUNDS_S), "+Inf")
        for process, counts in self.stalls.items():
            up_to = zip(bounds, accumulate(counts.counts), strict=True)
            family.add_metric((process,), [*up_to], counts.sum_s)
            longest.add_metric((process,), counts.longest_s)
        yield from (family, longest)


@dataclass(frozen=True, eq=False)
class _Sensors(Collector):
    """Readings of this node's sensors. A quantity that no sensor reports has no sample."""

    reading: HardwareReading

    def collect(self) -> Iterator[Metric]:
        """Yield a gauge of each quantity, with a sample for each accelerator that reports it."""
        names = ("node", "device", "vendor", "name")
        gauge = partial(GaugeMetricFamily, labels=names)
        busy = gauge("shoal_accelerator_utilisation_ratio", "Share of time in use, 0 to 1.")
        power = gauge("shoal_accelerator_power_watts", "Power draw.")
        temperature = gauge("shoal_accelerator_temperature_celsius", "Temperature.")
        clock = gauge("shoal_accelerator_clock_hertz", "Clock frequency.")
        whose = "the accelerator's own (vram), or mapped from the machine (gtt)."
        memory = partial(GaugeMetricFamily, labels=(*names, "memory"))
        used = memory("shoal_accelerator_memory_used_bytes", f"Memory in use: {whose}")
        total = memory("shoal_accelerator_memory_total_bytes", f"Total memory: {whose}")
        node = str(self.reading.node)
        for accelerator in self.reading.accelerators:
            labels = (node, accelerator.device, accelerator.vendor, accelerator.name or "")
            hertz = None if accelerator.clock_mhz is None else accelerator.clock_mhz * 1e6
            for family, value, more in (
                (busy, accelerator.utilisation_ratio, ()),
                (power, accelerator.power_w, ()),
                (temperature, accelerator.temperature_c, ()),
                (clock, hertz, ()),
                (used, accelerator.vram_used_bytes, ("vram",)),
                (used, accelerator.gtt_used_bytes, ("gtt",)),
                (total, accelerator.vram_total_bytes, ("vram",)),
                (total, accelerator.gtt_total_bytes, ("gtt",)),
            ):
                if value is not None:
                    family.add_metric((*labels, *more), value)
        yield from (busy, power, temperature, clock, used, total, *self._processor(node))

    def _processor(self, node: str) -> Iterator[Metric]:
        for name, help_text, value in (
            (
                "shoal_cpu_temperature_celsius",
                "Temperature of the hottest package.",
                self.reading.cpu_temperature_c,
            ),
            ("shoal_cpu_power_watts", "Power of all packages.", self.reading.cpu_power_w),
        ):
            family = GaugeMetricFamily(name, help_text, labels=("node",))
            if value is not None:
                family.add_metric((node,), value)
            yield family


@dataclass(frozen=True, eq=False)
class _Links(Collector):
    """Measurements of this node's links. A link without a measurement has no sample."""

    reading: LinkReading

    def collect(self) -> Iterator[Metric]:
        """Yield a gauge of each measured quantity, with a sample for each address of a peer."""
        gauge = partial(GaugeMetricFamily, labels=("node", "peer", "host"))
        latency = gauge("shoal_link_latency_seconds", "One-way latency of a small message.")
        trip = gauge("shoal_link_round_trip_seconds", "Round trip of an echo over the bus.")
        rate = gauge("shoal_link_bandwidth_bytes_per_second", "Measured bandwidth of a burst.")
        age = gauge(
            "shoal_link_bandwidth_age_seconds",
            "Age of the bandwidth measurement, as last reported.",
        )
        for link in self.reading.links:
            labels = (str(self.reading.node), str(link.peer), link.host)
            latency.add_metric(labels, link.latency_s)
            trip.add_metric(labels, link.round_trip_s)
            rate.add_metric(labels, link.bytes_per_s)
            age.add_metric(labels, link.age_s)
        yield from (latency, trip, rate, age)


@dataclass(frozen=True, eq=False)
class NodeTraffic(Collector):
    """Bytes that each process of `node` sent to other nodes and received from other nodes."""

    node: str
    processes: Mapping[str, Iterable[Crossed]]

    def collect(self) -> Iterator[Metric]:
        """Yield a counter for each direction, by process, peer and plane."""
        counter = partial(CounterMetricFamily, labels=("node", "peer", "plane", "process"))
        sent = counter("shoal_link_sent_bytes", "Bytes sent to another node.")
        received = counter("shoal_link_received_bytes", "Bytes received from another node.")
        for process, crossed in (
            (name, row) for name, rows in self.processes.items() for row in rows
        ):
            labels = (self.node, crossed.peer, crossed.plane, process)
            sent.add_metric(labels, crossed.sent_bytes)
            received.add_metric(labels, crossed.received_bytes)
        yield from (sent, received)
