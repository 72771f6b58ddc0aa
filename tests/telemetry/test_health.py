"""Which facts make which findings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bus.membership.peer_table import same_id_words
from bus.process.endpoints import Means, Removed
from bus.wire.ids import NodeId
from bus.wire.messages.readings import NodeReading, ProcessReading
from telemetry.health import CODES, ClosedPort, NodeFacts, SilentPeer, findings

GB = 1 << 30
READING = NodeReading(
    node=NodeId("n1"), disk_free_bytes=100 * GB, memory_total_bytes=16 * GB,
    memory_available_bytes=8 * GB, cpu_ratio=0.0, load_1m=0.0, disk_total_bytes=200 * GB,
    measured_at_s=0.0,
)  # fmt: skip
WELL = NodeFacts(READING)
FOLDER = Means("the folder of logs", Path("/s/logs"), "nothing is logged", lost="what was logged")
DAMAGED = "/home/journal/events-000000000012-000000000034-0badcafe.damaged"


def measured(**fields: object) -> NodeFacts:
    """A node that is well but for these fields of its reading."""
    return NodeFacts(READING.model_copy(update=fields))


def process(name: str, status: str, pid: int = 0) -> ProcessReading:
    return ProcessReading(
        name=name,
        pid=pid,
        status=status,
        cpu_s=0.0,
        cpu_ratio=0.0,
        resident_bytes=0,
        threads=0,
        uptime_s=0.0,
        description="Exited too quickly",
    )


def codes(facts: NodeFacts) -> list[tuple[str, str]]:
    return [(finding.level, finding.code) for finding in findings(facts)]


def test_a_node_that_is_well_has_no_findings() -> None:
    running = process("bus", "running", pid=4)
    assert codes(measured(processes=(running,))) == []


@pytest.mark.parametrize(
    ("free_bytes", "expected"),
    [
        (10 * GB, []),
        (10 * GB - 1, [("warn", "disk_low")]),
        (2 * GB, [("warn", "disk_low")]),
        (2 * GB - 1, [("error", "disk_full")]),
    ],
)
def test_disk_is_low_under_ten_gigabytes_and_full_under_two(
    free_bytes: int, expected: list[tuple[str, str]]
) -> None:
    assert codes(measured(disk_free_bytes=free_bytes)) == expected


def test_a_service_that_ended_is_an_error_and_an_empty_slot_is_not() -> None:
    processes = (
        process("master", "fatal"),
        process("gateway", "exited"),
        process("runner:03", "exited"),
        process("runner:04", "fatal"),
        process("worker", "backoff"),
    )
    found = findings(measured(processes=processes))
    assert [(f.level, f.code, f.message.split()[0]) for f in found] == [
        ("error", "process_down", "master"),
        ("error", "process_down", "gateway"),
        ("error", "process_down", "runner:04"),
        ("warn", "process_restarting", "worker"),
    ]


def test_errors_come_before_warnings_whatever_the_rules_order() -> None:
    facts = replace(
        measured(disk_free_bytes=5 * GB),
        failed_downloads=(("org/model", "404"),),
        failed_models=(("shoal-tiny", "3 failures in 60 s"),),
    )
    assert codes(facts) == [
        ("error", "download_failed"),
        ("warn", "disk_low"),
        ("warn", "model_failed"),
    ]


def test_memory_is_low_under_a_tenth() -> None:
    assert codes(measured(memory_available_bytes=GB)) == [("warn", "memory_low")]


def test_wired_memory_is_told_only_where_no_model_is_loaded() -> None:
    spare = process("runner:00", "running", pid=7)
    wired = measured(wired_bytes=6 * GB, processes=(spare,))
    assert codes(wired) == [("warn", "memory_wired")]
    assert codes(replace(wired, holds_model=True)) == []
    assert codes(measured(wired_bytes=5 * GB)) == []


def test_a_peer_is_unreachable_after_fifteen_seconds_and_the_finding_names_it() -> None:
    peer = SilentPeer(NodeId("n2"), "mini", 14.9)
    assert codes(replace(WELL, silent_peers=(peer,))) == []
    (found,) = findings(replace(WELL, silent_peers=(replace(peer, silent_s=15.0),)))
    assert (found.node, found.code) == ("n2", "unreachable")


def test_a_port_that_another_has_is_told_with_its_owner() -> None:
    [found] = findings(replace(WELL, closed_ports=(ClosedPort(24154, "bus", "nc (pid 7)"),)))
    assert (found.level, found.code) == ("error", "port_taken")
    assert "24154" in found.message and "nc (pid 7)" in found.message
    assert "--base-port" in found.remediation


def test_a_damaged_journal_is_an_error_that_names_what_is_lost_and_the_file() -> None:
    (found,) = findings(replace(WELL, damaged_files=(DAMAGED,)))
    assert (found.level, found.code) == ("error", "journal_damaged")
    assert "12 to 34" in found.message and DAMAGED in found.remediation


def test_other_damage_lost_keys_and_dead_threads_are_errors_with_a_way_out() -> None:
    facts = replace(
        WELL,
        damaged_files=("/home/term.damaged",),
        keys_lost=True,
        dead_threads=(("gateway", "records"),),
    )
    state, keys, thread = findings(facts)
    assert (state.code, keys.code, thread.code) == ("state_damaged", "keys_lost", "thread_ended")
    assert (
        "the state file term of" in state.message
        and "remove /home/term.damaged" in state.remediation
    )
    assert "`shoal apikey rm lost-keys`" in keys.remediation
    assert "the thread records of gateway" in thread.message
    assert "`shoal logs gateway`" in thread.remediation


def test_every_code_is_listed_and_every_finding_says_what_to_do() -> None:
    processes = (process("bus", "fatal"), process("worker", "backoff"))
    facts = replace(
        measured(
            disk_free_bytes=0, memory_available_bytes=0, processes=processes, wired_bytes=9 * GB
        ),
        closed_ports=(ClosedPort(24154, "bus", "nc (pid 7)"),),
        damaged_files=(DAMAGED, "/home/term.damaged"),
        dead_threads=(("gateway", "records"),),
        keys_lost=True,
        failed_downloads=(("m", "why"),),
        failed_models=(("m", "why"),),
        silent_peers=(SilentPeer(NodeId("n2"), "mini", 60.0),),
        same_ids=((NodeId("n2"), same_id_words(NodeId("n2"))),),
        bridge_loops=((NodeId("n1"), NodeId("n2"), NodeId("n3")),),
        pair_trouble="the key is another's",
        certificate_standing="expires soon",
        supervisor_trouble="supervisord at /run/s.sock: no such file",
        removed=(Removed(FOLDER, is_back=False, trouble="no room"), Removed(FOLDER, is_back=True)),
    )
    found = findings(facts)
    assert {f.code for f in found} == set(CODES) - {"disk_low"}
    assert all(f.remediation for f in found)


def test_a_ring_of_bridges_is_told_by_the_nodes_on_it_alone() -> None:
    ring = (NodeId("n1"), NodeId("n2"), NodeId("n3"))
    assert codes(replace(WELL, bridge_loops=(ring,))) == [("warn", "thunderbolt_loop")]
    assert codes(replace(measured(node=NodeId("n4")), bridge_loops=(ring,))) == []


def test_files_of_https_that_are_no_good_and_a_certificate_at_its_end_are_warnings() -> None:
    facts = replace(WELL, pair_trouble="the key is another's", certificate_standing="expires soon")
    assert codes(facts) == [("warn", "certificate_refused"), ("warn", "certificate_ending")]
    refused, ending = findings(facts)
    assert refused.message == "the key is another's"
    assert ending.message == "the HTTPS certificate expires soon"


def test_what_was_removed_is_told_with_what_fails_and_why_it_is_not_back() -> None:
    lock = Means("the lock of bus", Path("/r/bus.role"), "it may run twice", "bus")
    gone = (Removed(FOLDER, is_back=False, trouble="read-only"), Removed(lock, is_back=False))
    folder, file, back = findings(replace(WELL, removed=(*gone, Removed(FOLDER, is_back=True))))
    assert folder.message == (
        "the folder of logs was removed, so nothing is logged: /s/logs (read-only)"
    )
    assert "retries each second" in folder.remediation
    assert file.message.startswith("the lock of bus was removed, so it may run twice")
    assert file.remediation == "run `shoal restart`; bus failed to restore it"
    assert (back.level, back.code) == ("warn", "means_restored")
    assert "without what was logged: /s/logs" in back.message
