"""Talks to the temporary node: loads a model of some 620 MB and reads a long prompt, and compares
the peak memory with the memory that placement had estimated."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psutil

from bus.wire.messages.readings import RunnerReading
from gateway.cli.node.node_api import NodeApi
from gateway.cli.output.errors import CliError
from gateway.cli.selftest.node_checks import LOGS, place, unload
from gateway.cli.selftest.site import SelftestSite
from gateway.cli.selftest.verdicts import (
    RESERVE_BYTES,
    Bill,
    SelftestLine,
    bill_lines,
    judged,
    not_applicable,
)
from gateway.cli.verbs.node.down import until

MODEL = "selftest-memory"
LEAST_DISK_BYTES = 2_000_000_000
PROMPT = "one two three four five six seven eight nine ten eleven twelve " * 60
MADE_S, LISTED_S, READ_S = 120.0, 60.0, 120.0
LOOK_S = 0.25
SETTLE_S = 2.5
"""How long readings are still taken after the work. They come once a second, and the last reading
must be from after the work."""


@dataclass(slots=True)
class Peak:
    """The largest readings of a runner so far, in bytes."""

    device: int = 0
    process: int = 0
    prefix: int = 0
    loaded: int = 0

    def take(self, reading: RunnerReading) -> None:
        """Raise each figure to that of the reading, if that is larger."""
        self.device = max(self.device, reading.peak_bytes)
        self.process = max(self.process, reading.process_bytes)
        self.prefix = max(self.prefix, reading.prefix_bytes)
        self.loaded = max(self.loaded, reading.total_bytes)


def memory_lines(site: SelftestSite) -> Iterator[SelftestLine]:
    """Measure the peak of a load and a long prompt."""
    if psutil.disk_usage(str(site.folder)).free < LEAST_DISK_BYTES:
        yield not_applicable(("memory", "peak"), "less than 2 GB of the disk are free")
        return
    api = site.api()
    folder = site.settings().paths.models / MODEL
    site.measure("sized-model", folder=str(folder), timeout_s=MADE_S)
    if not until(LISTED_S, lambda: MODEL in api.state().models):
        raise CliError(f"the node did not list {MODEL} within {LISTED_S:g} s", remedy=LOGS)
    rank = _bill(api)
    free = psutil.virtual_memory().available
    if rank is None or free < rank["need_bytes"] + RESERVE_BYTES:
        text = f"only {free / 1e9:.1f} GB of memory are free"
        yield not_applicable(("memory", "peak"), text)
        return
    peak, trouble, prompt_tokens, instance = Peak(), None, 0, None
    pool = ThreadPoolExecutor(1)
    try:
        placed = pool.submit(place, api, MODEL, 1)
        _watch(site.node().api, placed, peak)
        instance = placed.result()
        answered = pool.submit(_read_prompt, api)
        _watch(site.node().api, answered, peak)
        prompt_tokens = answered.result()
    except CliError as error:
        trouble = error
    finally:
        # after an interrupt the open request ends with its node
        pool.shutdown(wait=False, cancel_futures=True)
    yield from bill_lines(
        Bill(
            need_bytes=rank["need_bytes"],
            weights_bytes=rank["weights_bytes"],
            kv_bytes=rank["kv_bytes"],
            context_tokens=rank["context_tokens"],
            device_bytes=peak.device,
            process_bytes=peak.process,
            loaded_bytes=peak.loaded,
            kv_measured_bytes=peak.prefix,
            kv_tokens=prompt_tokens,
        )
    )
    if trouble is not None:
        yield judged(("memory", "prompt"), False, trouble.message, trouble.remedy or LOGS)
    elif instance is not None:
        unload(api, str(instance.instance))


def _bill(api: NodeApi) -> dict[str, Any] | None:
    """Return placement's memory estimate for the only rank; None if the model does not fit now."""
    chosen = api.get(f"/instance/previews?model={MODEL}&min_nodes=1")["chosen"]
    if chosen is None:
        return None
    return {"context_tokens": chosen["context_tokens"], **chosen["ranks"][0]}


def _watch(api: NodeApi, work: Future[Any], peak: Peak) -> None:
    """Take the runner's readings until the work is done, and a moment longer."""
    ends_at: float | None = None
    while ends_at is None or time.monotonic() < ends_at:
        for reading in api.state().runners:
            if reading.model == MODEL:
                peak.take(reading)
        if ends_at is None and work.done():
            ends_at = time.monotonic() + SETTLE_S
        time.sleep(LOOK_S)


def _read_prompt(api: NodeApi) -> int:
    """Send a long prompt; return the number of its tokens."""
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    answer = api.post("/v1/completions", body, timeout_s=READ_S)
    return int(answer["usage"]["prompt_tokens"])
