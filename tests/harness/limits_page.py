"""Write docs/operations/limits.md from the code: what a client can make a node do, at most.

Every row takes its number from the constant that holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bus.links import keyring, transport
from bus.wire import api_keys, array_frames, codec
from bus.wire.ids import NodeId
from bus.wire.instances import LEAST_IDLE_S
from bus.wire.messages import derived
from conf.settings import Settings, load_settings
from gateway.control.keep_alive import APART_S
from gateway.dialects import shared_fields
from gateway.dialects.dialect import Limits
from gateway.dialects.openai import fields
from gateway.dialects.openai.responses.conversations import MOST_ADDED
from gateway.fetching import AT_ONCE, ReadLimits, content, dialling, fetcher, policy, tools, url
from gateway.fetching.places import shares
from gateway.fetching.reading import reader
from gateway.http import diagnostics, middleware
from gateway.http.connection import LAST_WORD_S
from gateway.http.resources import instances, requests
from gateway.http.resources.figures.events import MOST as MOST_LISTED
from gateway.http.resources.jobs import found, submit
from gateway.http.resources.tools import web
from gateway.records import (
    FAR_BYTES,
    MOST_BYTES,
    MOST_ITEMS,
    file,
    kept_answers,
    node_records,
    request_log,
)
from gateway.records.jobs import job
from gateway.records.jobs.runner import RESULT_BYTES
from gateway.requests import body_budget
from gateway.view.options import Options
from gateway.view.watch import EventBounds, FeedBounds
from gateway.view.watch.event_ring import MOST_BYTES as MOST_EVENT_BYTES
from gateway.view.watch.event_ring import MOST_EVENTS
from gateway.view.watch.log_files import MOST_LINES, TAIL_BYTES
from runner.lead import trace
from runner.lifecycle import PREPARES_S
from runner.serving.arrivals import PREPARING_CHARS
from runner.text import tokenizer
from runner.text.grammar import forms, gbnf
from runner.text.rendering import RenderLimits
from worker.transfer import store, thread

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "limits.md"
HEAD = """# Limits

Generated from the code by `make docs`; do not edit.

This page lists limits on what a client or another node can make a node do, and what the node does
when a limit is exceeded. A number in the last column is the HTTP status of the refusal. If a limit
has a setting in brackets, the setting changes the limit. All other limits are fixed. The limits of
HTTP apply to each HTTP process separately (`http_processes`).
"""
Row = tuple[str, str, str, str]


def amount(count: int) -> str:
    """Return a number of bytes in the unit that divides it."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size and count % size == 0:
            return f"{count // size} {unit}"
    return f"{count:,} bytes"


def http_rows(options: Options, limits: Limits) -> Iterator[Row]:
    """Give what holds before a request is understood."""
    yield "connections", f"{options.max_connections:,}", "", "503, closed"
    yield "time to send the headers", f"{options.headers_s:g} s", "", "408, closed"
    gone = "400 or 499, closed"
    yield (
        "time to answer a client that closed its side of the connection",
        f"{LAST_WORD_S:g} s",
        "",
        gone,
    )
    yield "TLS handshakes in progress", f"{options.max_connections:,}", "", "closed"
    yield "time for the first byte and the TLS handshake", f"{options.headers_s:g} s", "", "closed"
    yield "pause while a body is sent", f"{middleware.BODY_SILENCE_S:g} s", "", "408, closed"
    yield "time to send a body", f"{options.body_s:g} s", "", "408, closed"
    yield "body of a model request", amount(options.body_limit_bytes), "", "413"
    yield "body of any other request", amount(middleware.COMMAND_BYTES), "", "413"
    yield "body of a diagnostics request", amount(diagnostics.MAX_BODY_BYTES), "", "413"
    yield "all bodies that are being read, together", amount(body_budget.LIMIT_BYTES), "", "503"
    yield "nesting depth of a body", f"{options.body_depth}", "", "400"
    yield "values in a body", f"{limits.values:,}", "", "400"
    yield "keys in a body", f"{limits.keys:,}", "", "400"
    yield "arrays and objects in a body", f"{limits.objects:,}", "", "400"


def request_rows(settings: Settings, options: Options, limits: Limits) -> Iterator[Row]:
    """Give what holds of a request that was understood."""
    runner = settings.runner
    yield "messages", f"{limits.messages:,}", "", "400"
    yield "prompts", f"{limits.prompts}", "", "400"
    yield "tools", f"{limits.tools}", "", "400"
    yield (
        "stop strings",
        f"{limits.stops} of {shared_fields.MAX_STOP_CHARACTERS:,} characters",
        "",
        "400",
    )
    yield "`logit_bias` tokens", f"{fields.MAX_BIASED:,}", "", "400"
    yield "JSON schema", amount(forms.SCHEMA_BYTES), "", "400"
    yield "nesting depth of a JSON schema", f"{forms.SCHEMA_DEPTH}", "", "400"
    yield (
        "size of a regular expression, a grammar or a list of choices",
        amount(forms.RULE_BYTES),
        "",
        "400",
    )
    yield "texts in a list of choices", f"{forms.CHOICES_AT_MOST:,}", "", "400"
    yield "rules and brackets of a grammar", f"{gbnf.PARTS_AT_MOST}", "", "400"
    yield "characters and classes of a grammar", f"{gbnf.LEXEMES_AT_MOST:,}", "", "400"
    render = RenderLimits()
    stopped = "400, or the load fails"
    yield "chat template", f"{tokenizer.TEMPLATE_CHARACTERS:,} characters", "", "the load fails"
    yield (
        "rendering a template: time",
        f"{render.processor_s:g} s CPU, {render.wall_s:g} s in all",
        "",
        stopped,
    )
    yield (
        "rendering a template: memory",
        f"{amount(render.memory_bytes)} + {render.memory_per_byte} bytes for each byte",
        "",
        stopped,
    )
    yield (
        "rendering a template: text",
        f"{amount(render.text_bytes)} + {render.text_per_byte} bytes for each byte",
        "",
        stopped,
    )
    yield "derived models", f"{derived.MAX_DERIVED}", "", "409"
    yield "size of a derived model", amount(derived.MAX_DERIVED_BYTES), "", "400"
    yield "size of all derived models", amount(derived.MAX_ALL_DERIVED_BYTES), "", "409"
    yield "API keys", f"{api_keys.MAX_API_KEYS}", "", "409"
    yield "time to prepare a request", f"{PREPARES_S:g} s", "", "the runner is replaced"
    yield "integers in a request about placement", f"{instances.MOST - 1:,}", "", "400"
    yield "open requests", f"{options.max_open:,}", "", "429"
    yield "requests that wait for a model", f"{options.max_waiting}", "", "429"
    yield (
        "rows of an instance that compute",
        f"{runner.max_rows}",
        "`runner.max_rows`",
        "the row waits",
    )
    yield (
        "requests that wait for a row",
        f"{runner.max_waiting}",
        "`runner.max_waiting`",
        "429; the rest of one body waits",
    )
    yield (
        "text that waits to be tokenised (a client without waiting text may exceed it)",
        f"{PREPARING_CHARS:,} characters",
        "",
        "429",
    )
    yield (
        "`keep_alive` events",
        f"one in {LEAST_IDLE_S / 2:g} to {APART_S:g} s",
        "",
        "delayed",
    )
    yield "time without progress", f"{settings.request_timeout_s:g} s", "`request_timeout_s`", "504"
    yield "loading a model", f"{runner.load_deadline_s:g} s", "`runner.load_deadline_s`", "504"


def records_rows(settings: Settings) -> Iterator[Row]:
    """Give what requests leave behind on the disk, and what may be asked of it."""
    records = settings.records
    gone = "the oldest are deleted"
    yield "request log: rows", f"{records.request_rows:,}", "`records.request_rows`", gone
    yield "request log: size", amount(records.request_bytes), "`records.request_bytes`", gone
    yield "request log: age", f"{records.request_days:g} days", "`records.request_days`", gone
    yield "traces: number", f"{records.trace_rows:,}", "`records.trace_rows`", gone
    yield "traces: size", amount(records.trace_bytes), "`records.trace_bytes`", gone
    yield "traces: age", f"{records.trace_days:g} days", "`records.trace_days`", gone
    choices = f"{trace.MOST_CHOICES} choices, {trace.MOST_SPANS} of each kind"
    yield "spans of a request", choices, "", "merged"
    yield (
        "stored answers and conversations: number",
        f"{records.answer_rows:,}",
        "`records.answer_rows`",
        gone,
    )
    yield (
        "stored answers and conversations: size",
        amount(records.answer_bytes),
        "`records.answer_bytes`",
        gone,
    )
    yield (
        "stored answers and conversations: age (of conversations: since the last use)",
        f"{records.answer_days:g} days",
        "`records.answer_days`",
        gone,
    )
    yield (
        "one stored answer with its input",
        amount(kept_answers.LARGEST_BYTES),
        "",
        "not stored; the header `X-Shoal-Not-Kept` gives the reason",
    )
    yield "items of a conversation", f"{MOST_ITEMS:,} and {amount(MOST_BYTES)}", "", "400"
    yield "items added to a conversation by one request", f"{MOST_ADDED}", "", "400"
    yield (
        "bytes added to a conversation by one request at another node",
        amount(FAR_BYTES),
        "",
        "413",
    )
    yield "length of a name in the request log", f"{request_log.NAME_CHARS} characters", "", "cut"
    yield (
        "rows of the request log that wait to be written",
        f"{node_records.MOST_ROWS_WAITING:,}",
        "",
        "dropped and counted",
    )
    yield "queries of records that wait", f"{node_records.MOST_QUESTIONS}", "", "503"
    yield "requests listed in one answer", f"{requests.MOST:,}", "", "400"
    yield "models and clients in statistics", f"{request_log.MOST_GROUPS} each", "", "left out"
    jobs = settings.jobs
    yield "open jobs of a client", f"{jobs.per_client:,}", "`jobs.per_client`", "429"
    yield "open and ended jobs", f"{jobs.rows:,}", "`jobs.rows`", "429"
    yield "bodies and results of all jobs", amount(jobs.bytes), "`jobs.bytes`", "429"
    yield "running jobs of a node", f"{jobs.running:,}", "`jobs.running`", "the job waits"
    yield "body of a job", amount(submit.BODY_BYTES), "", "413"
    yield "result of a job", amount(RESULT_BYTES), "", "the job fails"
    yield (
        "age of a result",
        f"{jobs.ttl_s / 3600:g} h; {submit.MOST_TTL_S / 86_400:g} days on request",
        "`jobs.ttl_s`",
        "the result is deleted; 400 for a longer request",
    )
    yield "runs of a job whose HTTP process died each time", f"{job.MOST_CUTS}", "", "the job fails"
    yield "readers of job events", f"{found.MOST_READERS}", "", "429"
    yield (
        "damaged records files that are kept",
        f"{file.ASIDE_AT_MOST}",
        "",
        "the oldest is deleted",
    )


def watching_rows() -> Iterator[Row]:
    """Give what those who watch a cluster may take."""
    feed, events = FeedBounds(), EventBounds()
    yield "readers of `/metrics/stream`", f"{feed.readers}", "", "429"
    yield "readers of `/events`", f"{events.readers}", "", "429"
    yield "time in which a reader reads nothing", f"{events.slow_s:g} s", "", "dropped"
    held = f"{MOST_EVENTS:,} and {amount(MOST_EVENT_BYTES)}"
    yield "events in memory", held, "", "the oldest are dropped; readers get the event `gap`"
    yield "events listed in one answer", f"{MOST_LISTED:,}", "", "400"
    yield (
        "lines of a log file in one answer",
        f"{MOST_LINES:,} of the last {amount(TAIL_BYTES)}",
        "",
        "400",
    )


def fetching_rows(settings: Settings) -> Iterator[Row]:
    """Give what a page that a client names may take."""
    fetch, read = settings.fetch, ReadLimits()
    refused = "`fetch_refused`"
    most, of_one = shares(AT_ONCE, 1)
    yield "fetches in progress", f"{most}", "", "429"
    yield "fetches in progress for one client", f"{of_one}", "", "429"
    yield "URL", f"{url.MOST_CHARACTERS:,} characters", "", refused
    yield "time for a page with redirects", f"{fetch.whole_s:g} s", "`fetch.whole_s`", refused
    yield (
        "time to look up a name; time to connect",
        f"{dialling.RESOLVES_S:g} s, {dialling.CONNECTS_S:g} s",
        "",
        refused,
    )
    yield "pause while a page arrives", f"{dialling.SILENCE_S:g} s", "", refused
    yield "redirects", f"{fetch.redirects}", "`fetch.redirects`", refused
    yield (
        "size of a page, decompressed",
        amount(fetch.largest_bytes),
        "`fetch.largest_bytes`",
        "cut",
    )
    yield "size of headers and framing", amount(fetcher.AROUND_BYTES), "", refused
    yield (
        "compression ratio of a page",
        f"{content.MOST_RATIO}, from {amount(content.RATIO_FROM_BYTES)} on",
        "",
        refused,
    )
    yield "answer of a search engine", amount(policy.SEARCH_BYTES), "", refused
    yield "pages that are parsed at the same time", f"{reader.AT_ONCE}", "", "the page waits"
    took = f"{read.processor_s} s CPU, {read.wall_s:g} s in all"
    yield "parsing a page: time", took, "", refused
    yield "parsing a page: memory", amount(read.memory_bytes), "", refused
    yield "text of a page", f"{web.MOST_CHARACTERS:,} characters", "", "cut"
    yield "links of a page", f"{tools.MOST_LINKS}", "", "left out"


def bus_rows() -> Iterator[Row]:
    """Give what holds on the ports between nodes, and on the sockets of one."""
    closed = "connection closed"
    yield "envelope", amount(codec.MAX_CONTROL_BYTES), "", "dropped and logged"
    yield (
        "entries of an array or map in an envelope",
        f"{codec.MAX_ITEMS:,}",
        "",
        "dropped and logged",
    )
    yield "question to a master", amount(codec.MAX_QUESTION_BYTES), "", closed
    yield "data frame", amount(array_frames.MAX_FRAME_BYTES), "", "dropped and logged"
    yield "any message", amount(transport.MAX_MESSAGE_BYTES), "", closed
    yield "message of a node that is not known yet", amount(keyring.DOOR_MAX_BYTES), "", closed
    yield "known nodes", f"{keyring.MAX_KNOWN:,}", "", "refused"
    yield "message to the weight store", amount(thread.MAX_QUESTION_BYTES), "", closed
    yield "question to the weight store", amount(store.MAX_ASK_BYTES), "", "dropped"
    yield (
        "pieces that one node has requested and not received",
        f"{store.MAX_OPEN}",
        "",
        "refused as `busy`",
    )


def section(title: str, rows: Iterator[Row]) -> str:
    """Return a heading and a table."""
    lines = [f"## {title}", "", "| what | limit | beyond the limit |", "|---|---|---|"]
    for what, most, setting, beyond in rows:
        lines.append(f"| {what} | {most}{setting and f' ({setting})'} | {beyond} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the whole page."""
    settings, limits = load_settings(home=Path("/nowhere")), Limits()
    options = Options(NodeId("n1"), "n1", settings.endpoints, "")
    parts = [
        HEAD,
        section("HTTP", http_rows(options, limits)),
        section("Requests", request_rows(settings, options, limits)),
        section("Records and jobs", records_rows(settings)),
        section("Watching", watching_rows()),
        section("Fetching", fetching_rows(settings)),
        section("Sockets of the bus", bus_rows()),
    ]
    return "\n".join(parts)
