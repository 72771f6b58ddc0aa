"""The readings of runners as metrics.

Pure.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bus.wire.messages.readings import DemandReading, RunnerReading


@dataclass(frozen=True, eq=False)
class RunnerMetrics(Collector):
    """Runners' readings as metrics, with the name stems that dashboards expect. Prometheus uses
    `instance` for the scraped target, so our instances are labelled `instance_id`."""

    runners: list[RunnerReading]
    demands: list[DemandReading]

    def collect(self) -> Iterator[Metric]:
        names = ("model_name", "instance_id", "node")
        gauge = partial(GaugeMetricFamily, labels=names)
        counter = partial(CounterMetricFamily, labels=names)
        running = gauge("shoal_num_requests_running", "Requests in the batch.")
        waiting = gauge(
            "shoal_num_requests_waiting",
            "Requests queued at runners; instance_id is empty for requests that wait for a load.",
        )
        kv_ratio = gauge("shoal_kv_cache_usage_ratio", "KV cache in use, 0 to 1.")
        speed = gauge("shoal_generation_tokens_per_second", "Tokens generated in the last second.")
        hits = counter("shoal_prefix_cache_hits", "Prompts with a cached prefix.")
        hit_tokens = counter(
            "shoal_prefix_cache_hit_tokens", "Prompt tokens taken from the prefix cache."
        )
        preemptions = counter("shoal_num_preemptions", "Rows preempted for lack of memory.")
        ends = counter("shoal_num_memory_ends", "Rows ended because a rank used too much memory.")
        memory = gauge("shoal_runner_memory_bytes", "Accelerator memory in use.")
        drafting = GaugeMetricFamily(
            "shoal_spec_decode_peak_bytes",
            "The most accelerator memory that one proposal of a drafter took.",
            labels=(*names, "drafter"),
        )
        more, disk = _rank_memory(), _disk_counters(names)
        for runner in self.runners:
            labels = (str(runner.model), str(runner.instance), str(runner.node))
            memory.add_metric(labels, runner.active_bytes)
            for family, value in zip(
                more, (runner.limit_bytes, runner.cache_bytes, runner.peak_bytes), strict=True
            ):
                family.add_metric((*labels, str(runner.rank)), value)
            if runner.rank:
                continue
            running.add_metric(labels, runner.running)
            waiting.add_metric(labels, runner.waiting)
            kv_ratio.add_metric(labels, runner.kv_bytes / max(1, runner.kv_limit_bytes))
            speed.add_metric(labels, runner.generation_tokens_per_s)
            hits.add_metric(labels, runner.prefix_hits)
            hit_tokens.add_metric(labels, runner.prefix_hit_tokens)
            for family, value in zip(disk, _disk_counts(runner), strict=True):
                family.add_metric(labels, value)
            for drafter, (_, peak_bytes) in runner.proposals.items():
                drafting.add_metric((*labels, drafter), peak_bytes)
            preemptions.add_metric(labels, runner.preemptions)
            ends.add_metric(labels, runner.memory_ends)
        wanted = Counts[tuple[str, str]]()
        for reading in self.demands:
            for model in reading.models:
                wanted[model.model, reading.node] += model.waiting
        for (name, node), count in wanted.items():
            waiting.add_metric((name, "", node), count)
        counted = (running, waiting, kv_ratio, speed, hits, hit_tokens, preemptions, ends)
        yield from (*counted, *disk, memory, *more, drafting)


def _disk_counters(names: Sequence[str]) -> tuple[CounterMetricFamily, ...]:
    """Return counters of KV on disk and from other nodes, in the order of `_disk_counts`."""
    return tuple(
        CounterMetricFamily(f"shoal_kv_{name}", help_text, labels=names)
        for name, help_text in (
            ("disk_hits", "Prompts that started from KV on disk."),
            ("disk_hit_tokens", "Prompt tokens taken from KV on disk."),
            ("disk_read_bytes", "Bytes of KV read from disk."),
            ("disk_written_bytes", "Bytes of KV written to disk."),
            ("moved_runs", "Runs of KV copied from other nodes."),
            ("moved_bytes", "Bytes of KV copied from other nodes."),
            ("moves_dearer", "Runs of KV not copied, because computing was expected to be faster."),
            ("moves_failed", "Copies of KV from other nodes that failed."),
        )
    )


def _disk_counts(runner: RunnerReading) -> tuple[int, ...]:
    return (
        runner.kv_disk_hits,
        runner.kv_disk_hit_tokens,
        runner.kv_disk_read_bytes,
        runner.kv_disk_written_bytes,
        runner.kv_moved_runs,
        runner.kv_moved_bytes,
        runner.kv_moves_dearer,
        runner.kv_moves_failed,
    )


def _rank_memory() -> tuple[GaugeMetricFamily, ...]:
    """Return gauges of each rank's memory other than the memory in use: the limit, the cached bytes
    and the peak bytes."""
    names = ("model_name", "instance_id", "node", "rank")
    return tuple(
        GaugeMetricFamily(f"shoal_runner_memory_{name}_bytes", help_text, labels=names)
        for name, help_text in (
            ("limit", "Memory reserved for the rank."),
            ("cache", "Freed memory, cached for the next array."),
            ("peak", "Peak memory in use."),
        )
    )
