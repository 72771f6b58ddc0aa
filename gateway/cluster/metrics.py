"""Talks to Prometheus: our own counts, summed over HTTP processes, and the runners' readings.

The client library's multiprocess mode keeps each process's values in files of one folder;
`PROMETHEUS_MULTIPROC_DIR` must name it before this module is first imported (the composition root
does). What a runner knows is told from its readings at the time of the scrape.
"""

# pyright: reportUnknownMemberType=false
# (prometheus_client's collectors are not typed throughout)
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from bus.wire.messages.readings import DemandReading, RunnerReading
from gateway.cluster.counters import ITL_BOUNDS_S, Counters, ModelCounters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FLUSH_S = 1.0
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)


class BulkHistogram(Histogram):
    """A histogram that takes counts made elsewhere, for what is observed per token."""

    def add(self, counts: Iterable[int], total: float) -> None:
        """Add `counts`, one for each bucket (the last is infinity), and their sum."""
        for bucket, count in zip(cast(list[Any], self._buckets), counts, strict=True):
            if count:
                bucket.inc(count)
        self._sum.inc(total)


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A request that has ended, as far as it is counted. Seconds since its arrival."""

    model: str
    outcome: str
    prompt_tokens: int
    ttft_s: float | None
    seconds: float


class Metrics:
    """The counts of one HTTP process, and the text of all of them."""

    def __init__(self, counters: Counters) -> None:
        own = CollectorRegistry()
        by_model = ("model_name",)
        self._counters = counters
        self._requests = Counter(
            "shoal_requests", "Requests ended, by outcome.", ("model_name", "outcome"), registry=own
        )
        self._prompt = Counter(
            "shoal_prompt_tokens", "Prompt tokens of accepted requests.", by_model, registry=own
        )
        self._generated = Counter(
            "shoal_generation_tokens", "Tokens generated.", by_model, registry=own
        )
        self._ttft = Histogram(
            "shoal_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            by_model,
            buckets=_SECONDS,
            registry=own,
        )
        self._e2e = Histogram(
            "shoal_e2e_request_latency_seconds",
            "From a request's arrival to its end.",
            by_model,
            buckets=_SECONDS,
            registry=own,
        )
        self._itl = BulkHistogram(
            "shoal_inter_token_latency_seconds",
            "Between tokens of one request, as they arrive at the gateway.",
            by_model,
            buckets=ITL_BOUNDS_S,
            registry=own,
        )
        self._faults = Counter(
            "shoal_http_errors", "HTTP answers of 400 and above.", ("status",), registry=own
        )

    def ended(self, one: EndedRequest) -> None:
        """Count a request that has ended."""
        self._requests.labels(one.model, one.outcome).inc()
        if one.prompt_tokens:
            self._prompt.labels(one.model).inc(one.prompt_tokens)
        if one.ttft_s is not None:
            self._ttft.labels(one.model).observe(one.ttft_s)
        self._e2e.labels(one.model).observe(one.seconds)

    def fault(self, status: int) -> None:
        """Count an error answer."""
        self._faults.labels(str(status)).inc()

    def flush(self) -> None:
        """Put what was tallied per token where a scrape of any process sees it."""
        for model, counters in self._counters.drain().items():
            self._flush_model(model, counters)

    def render(self, runners: list[RunnerReading], demands: list[DemandReading]) -> bytes:
        """Return the metrics text of all HTTP processes and of the runners."""
        self.flush()
        scraped = CollectorRegistry()
        MultiProcessCollector(scraped)
        scraped.register(_Readings(runners, demands))
        return generate_latest(scraped)

    def _flush_model(self, model: str, counters: ModelCounters) -> None:
        self._generated.labels(model).inc(counters.tokens)
        self._itl.labels(model).add(counters.itl_counts, counters.itl_sum_s)


class _Readings(Collector):
    """Runners' readings as metrics, with the stems that dashboards know."""

    def __init__(self, runners: list[RunnerReading], demands: list[DemandReading]) -> None:
        self._runners = runners
        self._demands = demands

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all readings."""
        names = ("model_name", "instance", "node")
        running = GaugeMetricFamily(
            "shoal_num_requests_running", "Requests in the batch.", labels=names
        )
        waiting = GaugeMetricFamily(
            "shoal_num_requests_waiting",
            "Requests queued at runners; instance is empty for those that wait for a load.",
            labels=names,
        )
        kv_ratio = GaugeMetricFamily(
            "shoal_kv_cache_usage_ratio", "KV cache in use, 0 to 1.", labels=names
        )
        speed = GaugeMetricFamily(
            "shoal_generation_tokens_per_second",
            "Tokens generated in the last second.",
            labels=names,
        )
        hits = CounterMetricFamily(
            "shoal_prefix_cache_hits", "Prompts that found a cached prefix.", labels=names
        )
        hit_tokens = CounterMetricFamily(
            "shoal_prefix_cache_hit_tokens", "Prompt tokens taken from it.", labels=names
        )
        preemptions = CounterMetricFamily(
            "shoal_num_preemptions", "Rows put back for want of memory.", labels=names
        )
        memory = GaugeMetricFamily(
            "shoal_runner_memory_bytes", "Accelerator memory in use.", labels=names
        )
        for one in self._runners:
            labels = (str(one.model), str(one.instance), str(one.node))
            running.add_metric(labels, one.running)
            waiting.add_metric(labels, one.waiting)
            kv_ratio.add_metric(labels, one.kv_bytes / max(1, one.kv_limit_bytes))
            speed.add_metric(labels, one.generation_tokens_per_s)
            hits.add_metric(labels, one.prefix_hits)
            hit_tokens.add_metric(labels, one.prefix_hit_tokens)
            preemptions.add_metric(labels, one.preemptions)
            memory.add_metric(labels, one.active_bytes)
        for reading in self._demands:
            for wanted in reading.models:
                labels = (str(wanted.model), "", f"{reading.node}/{reading.process}")
                waiting.add_metric(labels, wanted.waiting)
        yield from (running, waiting, kv_ratio, speed, hits, hit_tokens, preemptions, memory)
