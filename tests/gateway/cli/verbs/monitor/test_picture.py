"""A cluster as lines: what each says, and that they fit every terminal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gateway.cli.verbs.monitor.figures import LastMinute
from gateway.cli.verbs.monitor.picture import ASCII, ClusterLook, bar, picture, sentence
from gateway.cli.verbs.monitor.tables import Column, Line, TableRow, cut, fold, plain, table
from gateway.cli.verbs.monitor.words import delay
from tests.gateway.cli.verbs.monitor.samples import (
    FULL,
    cluster,
    copy,
    counters,
    node,
    pool,
    queued,
    wait,
)


def seen(told: dict[str, Any], of_pool: dict[str, Any] | None = None, **more: Any) -> ClusterLook:
    counts = more.pop("counts", counters(3, 0, (3, 0, 0, 0)))
    return ClusterLook(told, of_pool or pool(), LastMinute().add(0.0, counts), **more)


def shown(one: ClusterLook, width: int = 120, height: int = 50) -> list[str]:
    return [plain(line) for line in picture(one, width, height)]


def line_with(lines: list[str], word: str) -> str:
    (found,) = (line for line in lines if word in line)
    return found


BUSY = seen(
    cluster(
        [
            node("reef"),
            node("kelp", health=FULL, draining=True),
            node("tide", silent_s=8.0),
            node(
                "far", silent_s=None, cpu_ratio=None, memory_total_bytes=None,
                memory_available_bytes=None,
            ),
        ],
        [
            copy("org/a-model", ("reef", "kelp")),
            copy("other", status="failed", why="it crashed 5 times"),
            copy(
                "third", status="placed", phase="loading", loaded_bytes=1, to_load_bytes=4,
                running=None, waiting=None, max_running=None, generation_tokens_per_s=None,
                kv_bytes=None, kv_limit_bytes=None,
            ),
        ],
        waiting=4,
    ),
    pool(
        waits=[wait("third"), wait("pinned-one", kind="pin", phase="hopeless", ready_in_s=None)],
        queue=[queued("third", 5, 3), queued("org/a-model", 10, 1, "runner")],
        copies=[
            {"instance": "inst-org/a-model", "model": "org/a-model", "in_use": True,
             "turn_left_s": 30.0, "load_s": 2.0, "yields_to": "third", "pinned_by": "ann",
             "replica": "", "leaves": ""},
        ],
    ),
    counts=counters(7, 2, (7, 0, 0, 0)),
)  # fmt: skip


def test_nodes_tell_their_memory_and_their_worst_reason() -> None:
    lines = shown(BUSY)
    reef = next(line for line in lines if line.startswith("reef "))
    assert "8.0 GB of 16.0 GB" in reef and "6.0 GB" in reef and "4.0 GB" in reef and "25%" in reef
    at = next(n for n, line in enumerate(lines) if line.startswith("kelp (draining)"))
    assert " error " in lines[at]
    assert lines[at + 1].strip() == "2 % of the disk is free; next: remove models with `shoal rm`"
    assert "silent 8 s" in line_with(lines, "tide")
    assert line_with(lines, "far ").split()[1:3] == ["silent", "-"]


def test_copies_tell_their_rows_speed_and_who_they_make_way_for() -> None:
    lines = shown(BUSY, width=160)
    first = next(line for line in lines if line.startswith("org/a-model"))
    assert "reef, kelp" in first and "3 of 32" in first and "42.4" in first and "10%" in first
    assert "evicted for third, pinned, min. residency 30 s" in first
    assert "loading 25%" in next(line for line in lines if line.startswith("third"))
    assert lines[next(n for n, x in enumerate(lines) if x.startswith("other")) + 1].strip() == (
        "it crashed 5 times"
    )


def test_what_waits_tells_its_priority_and_for_what() -> None:
    lines = shown(BUSY)
    at = next(n for n, line in enumerate(lines) if line.startswith("priority"))
    assert lines[at + 1].split() == ["5", "third", "3", "3", "s", "for", "memory"]
    assert lines[at + 2].strip() == (
        "evicting: other makes way, after 2 answers; ready in about 12 s"
    )
    assert lines[at + 3].split() == ["10", "org/a-model", "1", "-", "for", "a", "row"]
    assert lines[at + 4].split() == ["5", "pinned-one", "-", "7", "s", "for", "memory"]
    assert lines[at + 5].strip().startswith("hopeless: ")


def test_latencies_and_errors_are_told() -> None:
    lines = shown(BUSY)
    first = line_with(lines, "time to first token")
    assert first.split()[4:6] == ["50", "ms"] and "7 answers" in first
    assert "2 errors" in line_with(lines, "ended: stop 7")
    nothing = shown(seen(cluster([node("reef")], []), counts=counters()))
    assert line_with(nothing, "time to first token").split()[4:] == ["-"] * 4
    assert "no model is in memory" in nothing and "no request waits" in nothing


def test_a_lost_connection_is_said_and_what_was_known_stays() -> None:
    lost = seen(cluster([node("reef")], []), remark="lost for 4 s, trying again", is_lost=True)
    lines = shown(lost)
    assert lines[1] == "lost for 4 s, trying again"
    assert any(line.startswith("reef") for line in lines)


@pytest.mark.parametrize("width", [20, 32, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("height", [5, 12, 24, 60])
def test_it_fits_every_terminal(width: int, height: int) -> None:
    lines = picture(BUSY, width, height)
    assert len(lines) <= height
    assert [plain(line) for line in lines if cell_len(plain(line)) > width] == []


def test_a_narrow_terminal_keeps_what_matters() -> None:
    lines = shown(BUSY, width=44)
    assert all(any(line.startswith(name) for line in lines) for name in ("reef", "tide"))
    assert "silent 8 s" in line_with(lines, "tide")
    assert "3 of 32" in next(line for line in lines if line.startswith("org/a"))


def test_a_low_terminal_leaves_out_rows_and_counts_them() -> None:
    many = seen(cluster([node(f"n{at}") for at in range(40)], [copy("m")]))
    lines = shown(many, height=24)
    shown_nodes = sum(line.startswith("n") and line[1].isdigit() for line in lines)
    assert f"… and {40 - shown_nodes} more" in lines and 0 < shown_nodes < 20
    assert any("time to first token" in line for line in lines)


def test_one_line_tells_the_same() -> None:
    said = sentence(BUSY)
    assert "\n" not in said
    for part in (
        "4 nodes (kelp error: 2 % of the disk is free, tide silent 8 s, far silent)",
        "3 instances, 1 ready",
        "4 waiting (third 3 at 5, org/a-model 1 at 10, third: other makes way",
        "142 tokens/s",
        "ttft 50 ms / 95 ms",
        "2 errors",
    ):
        assert part in said
    assert sentence(seen(cluster([node("reef")], []))).startswith("1 node ok; 0 instances, 0 ready")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "####::::=......."),
        ({"used_bytes": 20_000_000_000}, "########........"),
        ({"promised_bytes": 40_000_000_000}, "####::::========"),
        ({"memory_total_bytes": None}, " " * 16),
    ],
)
def test_a_bar_of_memory_has_its_parts_in_proportion(more: Any, expected: str) -> None:
    known = {"used_bytes": 4_000_000_000, "promised_bytes": 5_000_000_000}
    assert bar(node("reef", **{**known, **more}), ASCII, 16) == expected


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.00042, "0.4 ms"), (0.0123, "12 ms"), (1.34, "1.3 s"), (130.0, "2 min"),
     (float("inf"), "longer")],
)  # fmt: skip
def test_a_delay_has_the_digits_that_it_deserves(seconds: float, said: str) -> None:
    assert delay(seconds) == said


def test_columns_are_left_out_before_texts_are_cut() -> None:
    columns = (Column("name", gives=True), Column("a", spare=1), Column("b", spare=2))
    row = TableRow((("a-long-name", ""), ("1234", ""), ("5678", "")))
    assert [plain(group[-1]) for group in table(columns, [row], 23)] == [
        "name         a     b", "a-long-name  1234  5678",
    ]  # fmt: skip
    assert plain(table(columns, [row], 18)[1][0]) == "a-long-name  1234"
    assert plain(table(columns, [row], 8)[1][0]) == "a-long-…"


def test_wide_characters_count_twice() -> None:
    assert plain(cut((("深海の魚", ""),), 6)) == "深海…"


@given(st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=200), st.integers(12, 60))
def test_folded_notes_are_three_lines_at_most_that_fit(text: str, width: int) -> None:
    note: Line = ((text, ""),)
    lines = fold([note], width)
    assert 1 <= len(lines) <= 3
    words = [word for word in text.split() if cell_len(word) + 2 > width]
    assert words or all(cell_len(plain(line)) <= width for line in lines)
