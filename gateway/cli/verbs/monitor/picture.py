"""The picture of a cluster as lines that fit a terminal, or as one line for a pipe.

Pure. Input is the gateway's JSON, unchecked: a KeyError or a TypeError means another version.
Unknown values are "-", never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.cli.output.amounts import size, span
from gateway.cli.verbs.monitor.figures import LatencySpread, Spell
from gateway.cli.verbs.monitor.tables import Column, Line, Piece, TableRow, Tone, cut, fold, table
from gateway.cli.verbs.monitor.words import UNKNOWN, copies_of, count, delay, number, part_of, rate

Fields = Mapping[str, Any]
SILENT_S = 2.4
"""Nodes send a reading each second. A node that has sent no reading for this long counts as
silent."""
BAR_CELLS = 14
WITH_BARS = 72
"""Minimum terminal width for the legend of the bars."""
BLOCKS, ASCII = "█▒▓·", "#:=."
"""Characters of a memory bar, in this order: memory of models (measured), other used memory, memory
that is reserved but not used, free memory."""
HEALTH: Mapping[str, Tone] = {"ok": "good", "warn": "warn", "error": "bad"}
STATUS: Mapping[str, Tone] = {"ready": "good", "failed": "bad"}


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """The state of the cluster at one moment: the metrics of all nodes, the models in memory or
    waiting for it (`pool`), and the latencies of the last minute (`spell`). `remark` is about the
    connection. `is_lost`: the connection is lost, and the other fields are from before."""

    cluster: Fields
    pool: Fields
    spell: Spell
    remark: str = ""
    is_lost: bool = False


def picture(seen: ClusterLook, width: int, height: int, *, blocks: str = BLOCKS) -> list[Line]:
    """Return the picture as at most `height` lines of at most `width` cells. If the picture has
    more lines, rows of the longest table are left out, and their number is shown."""
    parts = [
        [[line] for line in _head(seen, width)],
        _nodes(seen.cluster, width, blocks),
        _copies(seen.cluster, seen.pool, width),
        _queue(seen.pool, width),
        [*_latencies(seen.spell, width), *([[_legend(blocks)]] if width >= WITH_BARS else [])],
    ]
    left_out = [0] * len(parts)
    while _height(parts, left_out) > height and (longest := _longest(parts)) is not None:
        parts[longest].pop()
        left_out[longest] += 1
    lines: list[Line] = []
    for at, groups in enumerate(parts):
        if at:
            lines.append(())
        lines += [line for group in groups for line in group]
        if left_out[at]:
            lines.append(((f"… and {left_out[at]} more", "dim"),))
    return lines[:height]


def sentence(seen: ClusterLook) -> str:
    """Return the picture in one line."""
    cluster, spell = seen.cluster, seen.spell
    ill = [_named_health(node) for node in cluster["nodes"] if _health(node)[0] != "ok"]
    ready = sum(instance["status"] == "ready" for instance in cluster["instances"])
    how = f"({', '.join(ill)})" if ill else "ok"
    parts = [
        f"{count(len(cluster['nodes']), 'node')} {how}",
        f"{copies_of(len(cluster['instances']))}, {ready} ready",
        f"{cluster['running']} running",
        f"{cluster['waiting']} waiting{_of_queue(seen.pool)}",
        f"{rate(cluster['generation_tokens_per_s'])} tokens/s",
        f"ttft {_pair(spell.ttft)}",
        f"itl {_pair(spell.itl)}",
        _errors(spell),
    ]
    return "; ".join(([seen.remark] if seen.remark else []) + parts)


# --- the head -------------------------------------------------------------------------------------


def _head(seen: ClusterLook, width: int) -> list[Line]:
    cluster = seen.cluster
    names = {node["node"]: node["name"] for node in cluster["nodes"]}
    holder = cluster["holder"]
    term = f"term {cluster['term']}, leader {names.get(holder, holder)}"
    who = names.get(cluster["node"], cluster["node"])
    kv = f"KV {size(cluster['kv_bytes'])} of {size(cluster['kv_limit_bytes'])}"
    lines: list[Line] = [
        (
            (f"shoal at {who}", "head"),
            (f"  {term if holder else 'no leader'}", "dim" if holder else "warn"),
            ("" if cluster["live"] else "  no state yet", "warn"),
        ),
        (
            (f"{cluster['running']} running, {cluster['waiting']} waiting", ""),
            (f"  {rate(cluster['generation_tokens_per_s'])} tokens/s", "head"),
            (f"  prompts {rate(cluster['prompt_tokens_per_s'])}/s  {kv}", "dim"),
        ),
    ]
    if seen.remark:
        lines.insert(1, ((seen.remark, "bad" if seen.is_lost else "good"),))
    return [cut(line, width) for line in lines]


# --- nodes ----------------------------------------------------------------------------------------


def _nodes(cluster: Fields, width: int, blocks: str) -> list[list[Line]]:
    columns = (
        Column("node", gives=True),
        Column("health"),
        *((Column("memory", spare=2),) if width >= WITH_BARS else ()),
        Column("used of", right=True),
        Column("reserved", right=True, spare=1),
        Column("models", right=True, spare=3),
        Column("cpu", right=True, spare=4),
    )
    return table(columns, (_node_row(node, blocks, width) for node in cluster["nodes"]), width)


def _node_row(node: Fields, blocks: str, width: int) -> TableRow:
    word, tone, why = _health(node)
    total, free = node["memory_total_bytes"], node["memory_available_bytes"]
    used = UNKNOWN if total is None else f"{size(total - free)} of {size(total)}"
    cpu = UNKNOWN if node["cpu_ratio"] is None else f"{node['cpu_ratio']:.0%}"
    notes: tuple[Line, ...] = (((why, tone),),) if why else ()
    name = f"{node['name']} (draining)" if node["draining"] else node["name"]
    return TableRow(
        cells=(
            (name, "head"),
            (word, tone),
            *(((bar(node, blocks), ""),) if width >= WITH_BARS else ()),
            (used, ""),
            (size(node["promised_bytes"]), ""),
            (size(node["used_bytes"]), ""),
            (cpu, ""),
        ),
        notes=fold(notes, width),
    )


def bar(node: Fields, blocks: str = BLOCKS, cells: int = BAR_CELLS) -> str:
    """Return a bar that shows a node's memory; spaces if the memory is unknown."""
    total, free = node["memory_total_bytes"], node["memory_available_bytes"]
    if not total:
        return " " * cells
    in_use = total - free
    models = min(node["used_bytes"], in_use)
    reserved = max(0, min(node["promised_bytes"] - models, free))
    ends = [round(cells * part / total) for part in (models, in_use, in_use + reserved, total)]
    text, at = "", 0
    for block, end in zip(blocks, ends, strict=True):
        text += block * (end - at)
        at = max(at, end)
    return text


def _legend(blocks: str) -> Line:
    models, others, reserved, free = blocks
    text = f"memory: {models} models {others} other {reserved} reserved {free} free"
    return ((text, "dim"),)


def _health(node: Fields) -> tuple[str, Tone, str]:
    """Return a node's status, the colour of that status, and its worst reason."""
    silent_s, health = node["silent_s"], node["health"]
    why = "; next: ".join(filter(None, (health["message"], health["remediation"])))
    if silent_s is None or silent_s >= SILENT_S:
        since = "silent" if silent_s is None else f"silent {span(silent_s)}"
        return since, "bad", why
    return health["status"], HEALTH[health["status"]], why


def _named_health(node: Fields) -> str:
    word, _, _ = _health(node)
    why = node["health"]["message"]
    return f"{node['name']} {word}{f': {why}' if why else ''}"


# --- copies ---------------------------------------------------------------------------------------


def _copies(cluster: Fields, pool: Fields, width: int) -> list[list[Line]]:
    copies = cluster["instances"]
    if not copies:
        return [[(("no model is in memory", "dim"),)]]
    names = {node["node"]: node["name"] for node in cluster["nodes"]}
    stands = {copy["instance"]: copy for copy in pool["copies"]}
    columns = (
        Column("instance of", gives=True),
        Column("status"),
        Column("nodes", spare=2, gives=True),
        Column("rows", right=True),
        Column("waiting", right=True, spare=1),
        Column("tokens/s", right=True),
        Column("KV", right=True, spare=3),
        Column("memory", right=True, spare=4),
        Column("", spare=5),
    )
    rows = (_copy_row(copy, stands.get(copy["instance"]), names, width) for copy in copies)
    return table(columns, rows, width)


def _copy_row(copy: Fields, stand: Fields | None, names: Mapping[str, str], width: int) -> TableRow:
    nodes = [names.get(rank["node"], rank["node"]) for rank in copy["ranks"]]
    reserved = sum(rank["promised_bytes"] for rank in copy["ranks"])
    used = [rank["used_bytes"] for rank in copy["ranks"]]
    reported = [size_bytes for size_bytes in used if size_bytes is not None]
    kv = copy["kv_limit_bytes"]
    return TableRow(
        cells=(
            (copy["model"], "head"),
            (_status(copy), STATUS.get(copy["status"], "warn")),
            (", ".join(dict.fromkeys(nodes)), ""),
            (part_of(copy["running"], copy["max_running"]), ""),
            (number(copy["waiting"]), "warn" if copy["waiting"] else ""),
            (rate(copy["generation_tokens_per_s"]), ""),
            (f"{copy['kv_bytes'] / kv:.0%}" if kv else UNKNOWN, ""),
            (f"{size(sum(reported)) if reported else UNKNOWN} of {size(reserved)}", ""),
            (_standing(copy, stand), "dim"),
        ),
        notes=fold((((copy["why"], "bad"),),), width) if copy["status"] == "failed" else (),
    )


def _status(copy: Fields) -> str:
    if copy["status"] == "placed":
        part = copy["to_load_bytes"]
        how_far = f" {copy['loaded_bytes'] / part:.0%}" if part else ""
        return f"{copy['phase'] or 'loading'}{how_far}"
    return copy["status"]


def _standing(copy: Fields, stand: Fields | None) -> str:
    if stand is None:
        return "pinned" if copy["pinned"] else ""
    parts = [
        f"evicted for {stand['yields_to']}" if stand["yields_to"] else "",
        "replica" if stand["replica"] else "",
        "pinned" if stand["pinned_by"] is not None else "",
        f"min. residency {span(stand['turn_left_s'])}" if stand["turn_left_s"] else "",
    ]
    return ", ".join(filter(None, parts))


# --- the queue ------------------------------------------------------------------------------------


def _queue(pool: Fields, width: int) -> list[list[Line]]:
    queue = pool["queue"]
    waits = {wait["model"]: wait for wait in pool["waits"]}
    if not queue and not waits:
        return [[(("no request waits", "dim"),)]]
    columns = (
        Column("priority", right=True),
        Column("waits for", gives=True),
        Column("requests", right=True),
        Column("oldest", right=True, spare=1),
        Column("where", spare=2),
    )
    rows = [_queue_row(row, waits.pop(row["model"], None), width) for row in queue]
    rows += [_wait_row(wait, width) for wait in waits.values()]  # loaded or pinned by a user
    return table(columns, rows, width)


def _queue_row(row: Fields, wait: Fields | None, width: int) -> TableRow:
    oldest = UNKNOWN if row["oldest_s"] is None else span(row["oldest_s"])
    cells: tuple[Piece, ...] = (
        (str(row["priority"]), ""),
        (row["model"], "head"),
        (str(row["waiting"]), ""),
        (oldest, ""),
        ("for memory" if row["at"] == "gateway" else "for a row", "dim"),
    )
    return TableRow(cells, fold(_why(wait), width))


def _wait_row(wait: Fields, width: int) -> TableRow:
    cells: tuple[Piece, ...] = (
        (str(wait["priority"]), ""),
        (wait["model"], "head"),
        (UNKNOWN, ""),
        (span(wait["waited_s"]), ""),
        ("for memory", "dim"),
    )
    return TableRow(cells, fold(_why(wait), width))


def _why(wait: Fields | None) -> Sequence[Line]:
    if wait is None:
        return ()
    parts = [f"{wait['phase']}: {wait['why']}"]
    if wait["ready_in_s"] is not None:
        parts.append(f"ready in about {span(wait['ready_in_s'])}")
    if wait["ahead"]:
        parts.append(f"{wait['ahead']} ahead in the queue")
    tone: Tone = "bad" if wait["phase"] in ("refused", "hopeless") else "warn"
    return ((("; ".join(parts), tone),),)


def _of_queue(pool: Fields) -> str:
    """Return the waiting requests by model and priority as text, and in parentheses the models that
    wait for memory; empty if nothing waits."""
    queue = [f"{row['model']} {row['waiting']} at {row['priority']}" for row in pool["queue"]]
    whys = [f"{wait['model']}: {wait['why']}" for wait in pool["waits"]]
    return f" ({', '.join([*queue, *whys])})" if queue or whys else ""


# --- latencies ------------------------------------------------------------------------------------


def _latencies(spell: Spell, width: int) -> list[list[Line]]:
    since = "total" if spell.seconds is None else f"last {span(spell.seconds)}"
    columns = (
        Column(f"this gateway, {since}", gives=True),
        Column("p50", right=True),
        Column("p95", right=True),
        Column("p99", right=True, spare=1),
        Column("of", right=True, spare=2),
    )
    rows = [
        _spread_row("time to first token", spell.ttft, "answers"),
        _spread_row("between tokens", spell.itl, "tokens"),
    ]
    ended = ", ".join(f"{name} {count}" for name, count in sorted(spell.requests.items()))
    last: Line = (
        (f"ended: {ended or 'none'}  ", ""),
        (_errors(spell), "bad" if spell.http_errors else ""),
    )
    return [*table(columns, rows, width), [cut(last, width)]]


def _spread_row(name: str, spread: LatencySpread | None, what: str) -> TableRow:
    if spread is None:
        unknown: Piece = (UNKNOWN, "dim")
        return TableRow(((name, ""), unknown, unknown, unknown, unknown))
    values = (spread.p50_s, spread.p95_s, spread.p99_s)
    pieces: list[Piece] = [(delay(value), "") for value in values]
    return TableRow(((name, ""), *pieces, (f"{spread.count} {what}", "dim")))


def _pair(spread: LatencySpread | None) -> str:
    return UNKNOWN if spread is None else f"{delay(spread.p50_s)} / {delay(spread.p95_s)}"


def _errors(spell: Spell) -> str:
    return count(spell.http_errors, "error")


def _height(parts: Sequence[Sequence[Sequence[Line]]], left_out: Sequence[int]) -> int:
    lines = sum(len(group) for groups in parts for group in groups)
    return lines + len(parts) - 1 + sum(bool(count) for count in left_out)


def _longest(parts: Sequence[Sequence[Sequence[Line]]]) -> int | None:
    """Return the index of the table with the most lines that has a row to leave out; None if there
    is no such table. The title and the first row of a table always stay."""
    able = [at for at in (1, 2, 3) if len(parts[at]) > 2]
    return max(able, key=lambda at: sum(map(len, parts[at])), default=None)
