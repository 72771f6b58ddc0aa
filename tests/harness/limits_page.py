"""Write docs/operations/limits.md from the code: what a stranger can make a node do, at most.

Every row takes its number from the constant that holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bus.links import keyring, transport
from bus.wire import api_keys, array_frames, codec
from bus.wire.go_templates import TEMPLATE_BYTES
from bus.wire.go_templates.evaluate import STEPS_AT_MOST
from bus.wire.go_templates.parser import VARIABLES_AT_MOST
from bus.wire.go_templates.tree import NESTED_AT_MOST
from bus.wire.go_templates.values import SHOWN_AT_MOST
from bus.wire.ids import NodeId
from bus.wire.instances import LEAST_IDLE_S
from bus.wire.messages import derived
from conf.settings import Settings, load_settings
from gateway.cluster.keep_alive import APART_S
from gateway.cluster.options import Options
from gateway.cluster.watch import EventBounds, FeedBounds
from gateway.cluster.watch.event_ring import MOST_BYTES as MOST_EVENT_BYTES
from gateway.cluster.watch.event_ring import MOST_EVENTS
from gateway.cluster.watch.log_files import MOST_LINES, TAIL_BYTES
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
from runner.lifecycle import PREPARES_S
from runner.serving import trace
from runner.serving.arrivals import PREPARING_CHARS
from runner.text import tokenizer
from runner.text.grammar import forms, gbnf
from runner.text.rendering import RenderLimits
from worker.transfer import store, thread

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "limits.md"
HEAD = """# Limits

Generated from the code by `make docs`; do not edit.

What anybody who reaches a port can make a node do, at most, and what is answered beyond it. A
limit without a setting is fixed. Numbers of the HTTP API hold for each HTTP process of a gateway
(`http_processes`).
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
    yield "connection to complete headers", f"{options.headers_s:g} s", "", "408, closed"
    gone = "400 or 499 in words, closed"
    yield "an answer to a client that ended its side", f"{LAST_WORD_S:g} s", "", gone
    yield "TLS handshakes at once", f"{options.max_connections:,}", "", "closed"
    yield "first byte and TLS handshake", f"{options.headers_s:g} s", "", "closed"
    yield "a request's body, without a byte", f"{middleware.BODY_SILENCE_S:g} s", "", "408, closed"
    yield "a request's body, in all", f"{options.body_s:g} s", "", "408, closed"
    yield "a body that asks for text", amount(options.body_limit_bytes), "", "413"
    yield "a body that asks for anything else", amount(middleware.COMMAND_BYTES), "", "413"
    yield "a body of the diagnostics", amount(diagnostics.MAX_BODY_BYTES), "", "413"
    yield "bodies being read, together", amount(body_budget.LIMIT_BYTES), "", "503"
    yield "depth of a body", f"{options.body_depth}", "", "400"
    yield "values in a body", f"{limits.values:,}", "", "400"
    yield "keys in a body", f"{limits.keys:,}", "", "400"
    yield "arrays and objects in a body", f"{limits.objects:,}", "", "400"


def request_rows(settings: Settings, options: Options, limits: Limits) -> Iterator[Row]:
    """Give what holds of a request that was understood."""
    runner = settings.runner
    yield "messages", f"{limits.messages:,}", "", "400"
    yield "prompts of one request", f"{limits.prompts}", "", "400"
    yield "tools", f"{limits.tools}", "", "400"
    yield (
        "stop texts",
        f"{limits.stops} of {shared_fields.MAX_STOP_CHARACTERS:,} characters",
        "",
        "400",
    )
    yield "tokens with a bias", f"{fields.MAX_BIASED:,}", "", "400"
    yield "a JSON schema", amount(forms.SCHEMA_BYTES), "", "400"
    yield "depth of a JSON schema", f"{forms.SCHEMA_DEPTH}", "", "400"
    yield (
        "a regular expression, a grammar, texts to choose from",
        amount(forms.RULE_BYTES),
        "",
        "400",
    )
    yield "texts to choose from", f"{forms.CHOICES_AT_MOST:,}", "", "400"
    yield "rules and brackets of a grammar", f"{gbnf.PARTS_AT_MOST}", "", "400"
    yield "characters and classes of a grammar", f"{gbnf.LEXEMES_AT_MOST:,}", "", "400"
    render = RenderLimits()
    stopped = "400, or the load fails"
    yield "a chat template", f"{tokenizer.TEMPLATE_CHARACTERS:,} characters", "", "the load fails"
    yield (
        "time to render a chat template",
        f"{render.processor_s:g} s of a processor, {render.wall_s:g} s in all",
        "",
        stopped,
    )
    yield (
        "memory to render a chat template",
        f"{amount(render.memory_bytes)} + {render.memory_per_byte} bytes a byte",
        "",
        stopped,
    )
    yield (
        "text of a chat template",
        f"{amount(render.text_bytes)} + {render.text_per_byte} bytes a byte",
        "",
        stopped,
    )
    yield "a template in Go's language", amount(TEMPLATE_BYTES), "", "400"
    yield "blocks and brackets of one within each other", f"{NESTED_AT_MOST}", "", "400"
    yield "variables of one at a time", f"{VARIABLES_AT_MOST}", "", "400"
    yield "steps that one takes", f"{STEPS_AT_MOST:,}", "", "400"
    yield "text that one makes", amount(SHOWN_AT_MOST), "", "400"
    yield "derived models", f"{derived.MAX_DERIVED}", "", "409"
    yield "a derived model, with its prompts", amount(derived.MAX_DERIVED_BYTES), "", "400"
    yield "all derived models", amount(derived.MAX_ALL_DERIVED_BYTES), "", "409"
    yield "API keys of the cluster", f"{api_keys.MAX_API_KEYS}", "", "409"
    yield "time to prepare a request", f"{PREPARES_S:g} s", "", "the runner is replaced"
    yield "whole numbers about placement", f"{instances.MOST - 1:,}", "", "400"
    yield "requests open", f"{options.max_open:,}", "", "429"
    yield "requests that wait for a model", f"{options.max_waiting}", "", "429"
    yield "rows of a model", f"{runner.max_rows}", "`runner.max_rows`", "waits"
    yield (
        "requests that wait for a row",
        f"{runner.max_waiting}",
        "`runner.max_waiting`",
        "429; what is of the same body waits",
    )
    yield (
        "text that waits to be read, where a client has some there",
        f"{PREPARING_CHARS:,} characters",
        "",
        "429",
    )
    yield (
        "events of `keep_alive`",
        f"one in {LEAST_IDLE_S / 2:g} to {APART_S:g} s",
        "",
        "told later",
    )
    yield "time without progress", f"{settings.request_timeout_s:g} s", "`request_timeout_s`", "504"
    yield "time to load a model", f"{runner.load_deadline_s:g} s", "`runner.load_deadline_s`", "504"


def records_rows(settings: Settings) -> Iterator[Row]:
    """Give what requests leave behind on the disk, and what may be asked of it."""
    records = settings.records
    gone = "the oldest go"
    yield "requests in the log", f"{records.request_rows:,}", "`records.request_rows`", gone
    yield "their bytes", amount(records.request_bytes), "`records.request_bytes`", gone
    yield "their age", f"{records.request_days:g} days", "`records.request_days`", gone
    yield "traces of requests", f"{records.trace_rows:,}", "`records.trace_rows`", gone
    yield "their bytes", amount(records.trace_bytes), "`records.trace_bytes`", gone
    yield "their age", f"{records.trace_days:g} days", "`records.trace_days`", gone
    choices = f"{trace.MOST_CHOICES} choices, {trace.MOST_SPANS} of a kind for each"
    yield "spans that a runner tells of a request", choices, "", "they are joined"
    yield (
        "answers and conversations kept, of all API keys",
        f"{records.answer_rows:,}",
        "`records.answer_rows`",
        gone,
    )
    yield "their bytes together", amount(records.answer_bytes), "`records.answer_bytes`", gone
    yield (
        "their ages, a conversation's from its last use",
        f"{records.answer_days:g} days",
        "`records.answer_days`",
        gone,
    )
    yield (
        "an answer, with what it was made from",
        amount(kept_answers.LARGEST_BYTES),
        "",
        "not kept, and said so",
    )
    yield "items of a conversation", f"{MOST_ITEMS:,} of {amount(MOST_BYTES)} together", "", "400"
    yield "items that are added to one at once", f"{MOST_ADDED}", "", "400"
    yield "what is added at once to another node's conversation", amount(FAR_BYTES), "", "413"
    yield "a name in it", f"{request_log.NAME_CHARS} characters", "", "cut"
    yield (
        "requests that wait to be written",
        f"{node_records.MOST_ROWS_WAITING:,}",
        "",
        "not logged, and counted",
    )
    yield "questions that wait", f"{node_records.MOST_QUESTIONS}", "", "503"
    yield "requests told in one answer", f"{requests.MOST:,}", "", "400"
    yield "models and clients in statistics", f"{request_log.MOST_GROUPS} each", "", "left out"
    jobs = settings.jobs
    yield "jobs of one client that are open", f"{jobs.per_client:,}", "`jobs.per_client`", "429"
    yield "jobs kept, open ones and those that ended", f"{jobs.rows:,}", "`jobs.rows`", "429"
    yield "bytes of their bodies and results", amount(jobs.bytes), "`jobs.bytes`", "429"
    yield "jobs that run at a time on a node", f"{jobs.running:,}", "`jobs.running`", "waits"
    yield "the body of a job", amount(submit.BODY_BYTES), "", "413"
    yield "what a job says", amount(RESULT_BYTES), "", "the job fails"
    yield (
        "how long a result is kept",
        f"{jobs.ttl_s / 3600:g} h; {submit.MOST_TTL_S / 86_400:g} days where that is asked for",
        "`jobs.ttl_s`",
        "it goes; 400",
    )
    yield "runs of a job whose processes die", f"{job.MOST_CUTS}", "", "the job fails"
    yield "clients that read the events of jobs", f"{found.MOST_READERS}", "", "429"
    yield "broken records files kept", f"{file.ASIDE_AT_MOST}", "", "the oldest goes"


def watching_rows() -> Iterator[Row]:
    """Give what those who watch a cluster may take."""
    feed, events = FeedBounds(), EventBounds()
    yield "readers of `/metrics/stream`", f"{feed.readers}", "", "429"
    yield "readers of `/events`", f"{events.readers}", "", "429"
    yield "a reader of either that takes nothing", f"{events.slow_s:g} s", "", "dropped"
    held = f"{MOST_EVENTS:,} of {amount(MOST_EVENT_BYTES)} together"
    yield "events of the log held", held, "", "the oldest go, and a gap is told"
    yield "events told in one answer", f"{MOST_LISTED:,}", "", "400"
    yield "lines of a process's log", f"{MOST_LINES:,} of the last {amount(TAIL_BYTES)}", "", "400"


def fetching_rows(settings: Settings) -> Iterator[Row]:
    """Give what a page that a client names may take."""
    fetch, read = settings.fetch, ReadLimits()
    refused = "`fetch_refused`"
    most, of_one = shares(AT_ONCE, 1)
    yield "fetches at once, on a node", f"{most}", "", "429"
    yield "fetches at once of one client", f"{of_one}", "", "429"
    yield "a URL", f"{url.MOST_CHARACTERS:,} characters", "", refused
    yield "a page with its redirects", f"{fetch.whole_s:g} s", "`fetch.whole_s`", refused
    yield (
        "a name, a connection",
        f"{dialling.RESOLVES_S:g} s, {dialling.CONNECTS_S:g} s",
        "",
        refused,
    )
    yield "a page, without a byte", f"{dialling.SILENCE_S:g} s", "", refused
    yield "redirects", f"{fetch.redirects}", "`fetch.redirects`", refused
    yield "a page, unpacked", amount(fetch.largest_bytes), "`fetch.largest_bytes`", "cut"
    yield "headers and framing", amount(fetcher.AROUND_BYTES), "", refused
    yield (
        "unpacked bytes for one packed",
        f"{content.MOST_RATIO}, from {amount(content.RATIO_FROM_BYTES)} on",
        "",
        refused,
    )
    yield "a search engine's answer", amount(policy.SEARCH_BYTES), "", refused
    yield "pages read at once", f"{reader.AT_ONCE}", "", "waits"
    took = f"{read.processor_s} s of a processor, {read.wall_s:g} s in all"
    yield "time to read a page", took, "", refused
    yield "memory to read a page", amount(read.memory_bytes), "", refused
    yield "text of a page", f"{web.MOST_CHARACTERS:,} characters", "", "cut"
    yield "links of a page", f"{tools.MOST_LINKS}", "", "left out"


def bus_rows() -> Iterator[Row]:
    """Give what holds on the ports between nodes, and on the sockets of one."""
    closed = "the connection is closed"
    yield "an envelope", amount(codec.MAX_CONTROL_BYTES), "", "dropped, a line in the log"
    yield "an array or map in it", f"{codec.MAX_ITEMS:,}", "", "dropped, a line in the log"
    yield "a question to a master", amount(codec.MAX_QUESTION_BYTES), "", closed
    yield "a data frame", amount(array_frames.MAX_FRAME_BYTES), "", "dropped, a line in the log"
    yield "any message", amount(transport.MAX_MESSAGE_BYTES), "", closed
    yield "a message at the door of new nodes", amount(keyring.DOOR_MAX_BYTES), "", closed
    yield "nodes known", f"{keyring.MAX_KNOWN:,}", "", "refused"
    yield "a message to the store of weights", amount(thread.MAX_QUESTION_BYTES), "", closed
    yield "a question to it", amount(store.MAX_ASK_BYTES), "", "dropped"
    yield "pieces that one asker has open", f"{store.MAX_OPEN}", "", "refused as `busy`"


def section(title: str, rows: Iterator[Row]) -> str:
    """Return a heading and a table."""
    lines = [f"## {title}", "", "| what | at most | setting | beyond it |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the whole page."""
    settings, limits = load_settings(home=Path("/nowhere")), Limits()
    options = Options(NodeId("n1"), "n1", settings.endpoints, "")
    parts = [
        HEAD,
        section("HTTP, before a request is understood", http_rows(options, limits)),
        section("Requests", request_rows(settings, options, limits)),
        section("Records", records_rows(settings)),
        section("Watching", watching_rows()),
        section("Fetching", fetching_rows(settings)),
        section("Sockets of the bus", bus_rows()),
    ]
    return "\n".join(parts)
