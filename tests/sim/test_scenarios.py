"""Single stories, told on the same machines as the random schedules."""

from __future__ import annotations

import os

import pytest

from bus.wire.ids import CommandId, NodeId
from bus.wire.messages.commands import PlaceModel
from bus.wire.messages.peers import AskVote
from master.consensus.votes import minority
from tests.sim.cluster import PLANS, Cluster
from tests.sim.machine import FOLDER, Machine
from tests.sim.simulated_holder import MODEL

JOURNAL = FOLDER / "events.log"
PROVING = bool(os.environ.get("SHOAL_PROVE"))
SEEDS = range(20 if PROVING else 8)


def formed(plan: str, seed: int = 1) -> tuple[Cluster, Machine]:
    """A cluster that has settled, and its holder."""
    cluster = Cluster(PLANS[plan], seed)
    cluster.start()
    assert cluster.world.run(10.0, lambda: cluster.world.now > 4.0 and cluster.settled())
    return cluster, next(m for m in cluster.machines if m.candidate.holding)


def place(name: str) -> PlaceModel:
    return PlaceModel(command_id=CommandId(name), model=MODEL, if_absent=False)


def cut_off(cluster: Cluster, machine: Machine) -> None:
    others = [m.name for m in cluster.machines if m is not machine]
    cluster.world.cut |= {(machine.name, name) for name in others}
    cluster.world.cut |= {(name, machine.name) for name in others}


def test_five_voters_form_within_a_lapse_and_a_little() -> None:
    for seed in SEEDS:
        cluster = Cluster(PLANS["five-voters"], seed)
        cluster.start()
        assert cluster.world.run(1.0 + 3.0, cluster.settled), cluster.where()
        assert len(cluster.checks.terms) == 1


@pytest.mark.parametrize("part", range(4 if PROVING else 1))
def test_a_voter_whose_journal_has_a_flipped_bit_undoes_nothing_at_25_places(part: int) -> None:
    cluster, _ = formed("three-voters")
    for number in range(60):
        cluster.machines[number % 3].want(place(f"c{number}"))
        cluster.world.run(cluster.world.now + 0.1)
    cluster.settle()
    for spot in range(part * 25, part * 25 + 25):
        cluster.settle()
        holder = next(m for m in cluster.machines if m.candidate.holding)
        damaged, away = (m for m in cluster.machines if m is not holder)
        cut_off(cluster, away)
        holder.want(place(f"without-{away.name}-{spot}"))
        cluster.world.run(cluster.world.now + 1.5)
        index = holder.candidate.committed
        assert index == holder.candidate.state.index, "the two committed without the third"
        holder.kill()
        damaged.kill()
        data = damaged.disk.names[JOURNAL].data
        data[spot * len(data) // 100] ^= 1 << spot % 8
        damaged.start()
        if spot % 2:
            damaged.kill(power=True)  # before it heard from anybody
            damaged.start()
        cluster.world.cut.clear()
        cluster.world.run(cluster.world.now + 8.0)
        assert not any(m.candidate.holding for m in (damaged, away)), "what it lost counts"
        assert not damaged.candidate.election.eligible
        cluster.faults += 2
        cluster.heal()


def test_machines_that_start_together_again_do_not_sit_out_the_lapse() -> None:
    for plan in ("pair", "free"):
        for seed in SEEDS:
            cluster, _ = formed(plan, seed)
            terms = len(cluster.checks.terms)
            for machine in cluster.machines:
                machine.kill()
            cluster.world.run(cluster.world.now + 5.0)
            for machine in cluster.machines:
                machine.start()
            assert cluster.world.run(cluster.world.now + 1.5, cluster.settled), cluster.where()
            cluster.settle()
            assert len(cluster.checks.terms) == terms + 1, "and only one of them claims"


def test_one_of_those_that_start_together_is_missing_so_they_wait() -> None:
    cluster, _ = formed("free")
    for machine in cluster.machines:
        machine.kill()
    for machine in cluster.machines[1:]:
        machine.start()
    there = [machine.candidate for machine in cluster.machines[1:]]
    assert not cluster.world.run(
        cluster.world.now + 1.5, lambda: any(candidate.holding for candidate in there)
    )
    assert cluster.world.run(
        cluster.world.now + 1.5, lambda: any(candidate.holding for candidate in there)
    )


def test_a_holder_that_dies_is_followed_within_three_seconds() -> None:
    for plan in ("three-voters", "five-voters", "pair", "free"):
        for seed in SEEDS:
            cluster, holder = formed(plan, seed)
            holder.kill()
            began = cluster.world.now
            others = [m for m in cluster.machines if m is not holder]
            assert cluster.world.run(
                began + 3.0, lambda others=others: any(m.candidate.holding for m in others)
            ), (plan, seed, cluster.where())


def test_a_voter_that_was_cut_off_for_a_minute_changes_nothing_when_it_is_back() -> None:
    cluster, holder = formed("three-voters")
    lost = next(m for m in cluster.machines if m is not holder)
    cut_off(cluster, lost)
    cluster.world.run(cluster.world.now + 60.0)
    assert lost.candidate.election.counter == holder.candidate.election.counter
    refusal = minority(lost.candidate.election, lost.now)
    assert refusal is not None
    assert refusal.facts["missing"] == sorted(cluster.voters - {lost.node})
    cluster.heal()
    cluster.settle()
    assert len(cluster.checks.terms) == 1 and holder.candidate.holding


def test_a_holder_that_was_cut_off_steps_down_and_its_tail_is_replaced() -> None:
    cluster, holder = formed("three-voters")
    cut_off(cluster, holder)
    holder.want(place("mine"))
    cluster.world.run(cluster.world.now + 0.5)
    assert "mine" in holder.candidate.state.commands
    assert "mine" not in cluster.checks.promises, "nobody else has it"
    cluster.world.run(cluster.world.now + 6.0)
    assert not holder.candidate.holding
    holder.open.clear()
    cluster.heal()
    cluster.settle()
    assert "mine" not in holder.candidate.state.commands
    assert len(cluster.checks.terms) == 2


def test_a_holder_that_wakes_from_a_long_sleep_steps_down_before_it_takes_a_message() -> None:
    cluster, holder = formed("pair")
    other = next(m for m in cluster.machines if m is not holder)
    asked = other.candidate.candidacy((), other.now)
    holder.pause(asleep=True)
    cluster.world.run(cluster.world.now + 60.0)
    holder.paused = None
    holder.shell.receive(asked)
    assert not holder.candidate.holding


def test_both_sides_of_a_cut_pair_go_on_and_one_gives_way_when_it_heals() -> None:
    cluster, _ = formed("pair")
    one, two = cluster.machines
    cut_off(cluster, one)
    cluster.world.run(cluster.world.now + 4.0)
    assert one.candidate.holding and two.candidate.holding
    for machine in (one, two):
        machine.want(place(f"of-{machine.name}"))
    cluster.world.run(cluster.world.now + 1.0)
    assert {a.durability for a in cluster.checks.promises.values()} == {"local"}
    cluster.heal()
    cluster.settle()
    kept = {name for name in ("of-a", "of-b") if name in one.candidate.state.commands}
    assert len(kept) == 1, "one side's change is undone"
    lost = ({"of-a", "of-b"} - kept).pop()
    told = next(m.undone for m in (one, two) if m.undone)
    assert lost in told and not kept & set(told), "its node tells of it, and of nothing else"


def test_connections_that_come_and_go_start_no_campaign() -> None:
    for plan in ("three-voters", "free"):
        cluster, holder = formed(plan)
        for _ in range(600):
            for machine in cluster.machines:
                machine.know(share=0.5)
            cluster.world.run(cluster.world.now + 0.1)
        assert len(cluster.checks.terms) <= 1 + (plan == "free") * len(cluster.machines)
        assert holder.candidate.holding


def test_a_vote_outlives_the_process_that_gave_it() -> None:
    cluster, holder = formed("three-voters")
    voter, rival = (m for m in cluster.machines if m is not holder)
    holder.kill()
    cluster.world.cut = {(a, b) for a in "abc" for b in "abc"}
    cluster.world.run(cluster.world.now + 1.8)

    def answer(candidate: Machine, counter: int) -> bool:
        rank = candidate.candidate.election.rank
        ask = AskVote(
            node=candidate.node, counter=counter, trial=False, last_term=rank.last_term,
            last_index=rank.last_index, voters=tuple(sorted(cluster.voters)),
        )  # fmt: skip
        votes: list[bool] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(voter.wire, "send", lambda _to, vote: votes.append(vote.granted))
            voter.heard(ask)
        (granted,) = votes
        return granted

    assert answer(holder, 9) is True
    voter.kill(power=True)
    voter.start()
    assert voter.candidate.election.voted_for == holder.node
    assert answer(rival, 9) is False
    assert answer(holder, 9) is True
    assert answer(rival, 10) is True


def test_a_holder_whose_disk_fills_hands_over_to_one_that_can_write() -> None:
    for plan in ("three-voters", "pair"):
        cluster, holder = formed(plan)
        holder.disk.full = True
        holder.want(place("does not fit"))
        cluster.world.run(cluster.world.now + 5.0)
        assert not holder.candidate.holding
        assert sum(m.candidate.holding for m in cluster.machines) == 1
        assert len(cluster.checks.terms) <= 3


def test_a_voter_that_cannot_write_its_vote_says_that_it_may_not_lead() -> None:
    cluster, holder = formed("three-voters")
    voter = next(m for m in cluster.machines if m is not holder)
    voter.disk.full = True
    holder.kill()
    others = [m for m in cluster.machines if m is not holder]
    cluster.world.run(cluster.world.now + 5.0)
    assert not any(m.candidate.holding for m in others)
    assert not voter.candidate.election.eligible


def test_where_nobody_votes_one_leads_though_it_cannot_write_its_term() -> None:
    cluster = Cluster(PLANS["pair"], 1)
    alone = cluster.machines[0]
    alone.disk.reserved, alone.disk.full = frozenset(), True
    alone.start()
    assert cluster.world.run(10.0, lambda: len(cluster.checks.terms) == 1), cluster.where()
    assert alone.candidate.holding


def test_the_last_one_whose_disk_is_full_goes_on_and_says_volatile() -> None:
    cluster, holder = formed("pair")
    other = next(m for m in cluster.machines if m is not holder)
    other.kill()
    holder.disk.full = True
    cluster.world.run(cluster.world.now + 3.0)
    holder.want(place("c"))
    cluster.world.run(cluster.world.now + 1.0)
    assert cluster.checks.promises[CommandId("c")].durability == "volatile"


def test_a_node_that_claimed_alone_joins_voters_without_a_change_of_holder_for_them() -> None:
    cluster = Cluster(PLANS["voters-and-others"], 3)
    guest = cluster.machines[-1]
    assert not guest.voters
    cut_off(cluster, guest)
    cluster.start()
    cluster.world.run(8.0)
    holder = next(m for m in cluster.machines if m.candidate.holding and m is not guest)
    assert guest.candidate.holding, "it knows of no voters and hears nobody"
    cluster.heal()
    cluster.settle()
    assert holder.candidate.holding
    assert guest.candidate.election.voters == cluster.voters
    assert guest.node == NodeId("e")


def test_a_node_that_was_away_and_alone_does_not_undo_what_the_others_did() -> None:
    for seed in range(10):
        cluster, holder = formed("free", seed)
        away = next(m for m in cluster.machines if m is not holder)
        cut_off(cluster, away)
        for _ in range(3):  # each time it counts on
            cluster.world.run(cluster.world.now + 5.0)
            assert away.candidate.holding
            away.kill()
            away.start()
        cluster.world.run(cluster.world.now + 5.0)
        assert away.candidate.election.counter > holder.candidate.election.counter
        holder.want(place(f"kept-{seed}"))
        away.want(place(f"undone-{seed}"))
        cluster.world.run(cluster.world.now + 2.0)
        assert cluster.checks.promises[CommandId(f"kept-{seed}")].durability == "replicated"
        cluster.faults += 3
        terms = len(cluster.checks.terms)
        snapshots = sum("replaced the log by a snapshot" in line for line in cluster.world.story)
        cluster.heal()
        cluster.settle()
        assert holder.candidate.holding, cluster.where()
        assert f"kept-{seed}" in holder.candidate.state.commands
        assert f"undone-{seed}" not in holder.candidate.state.commands
        assert len(cluster.checks.terms) == terms + 1, "the holder went above its counter, once"
        more = (
            sum("replaced the log by a snapshot" in line for line in cluster.world.story)
            - snapshots
        )
        assert more == 1, "only the log of the one that was away was replaced"


def followed(cluster: Cluster, left: Machine) -> bool:
    """Whether all but the one that left follow one holder of a new term, mirrors too."""
    others = [m for m in cluster.machines if m is not left and m.up]
    holders = {m.candidate.election.holder for m in others} | {m.mirror.holder for m in others}
    return len(holders) == 1 and not holders & {None, left.node}


def test_a_holder_that_is_told_to_end_hands_its_term_on_within_a_second() -> None:
    for plan in ("pair", "three-voters", "five-voters", "voters-and-others", "free"):
        for seed in range(4):
            cluster, holder = formed(plan, seed)
            before, began = len(cluster.checks.terms), cluster.world.now
            holder.leave()
            assert cluster.world.run(
                began + 1.0, lambda cluster=cluster, holder=holder: followed(cluster, holder)
            ), (plan, seed, cluster.where())
            assert len(cluster.checks.terms) == before + 1, "one took it, and nobody else tried"
            assert cluster.world.run(began + 1.2, lambda holder=holder: not holder.up)


def test_what_was_asked_of_a_holder_that_leaves_is_done_by_the_next_and_nothing_is_lost() -> None:
    for plan in ("pair", "three-voters", "five-voters"):
        for seed in range(3):
            cluster, holder = formed(plan, seed)
            asker = next(m for m in cluster.machines if m is not holder)
            for number in range(6):
                asker.want(place(f"{seed}-{number}"))
                cluster.world.run(cluster.world.now + 0.01)
                if number == 2:
                    holder.leave()
            cluster.world.run(cluster.world.now + 4.0)
            there = cluster.at(asker.candidate.election.holder)
            assert there is not None and there is not holder
            known = there.candidate.state.commands
            assert {f"{seed}-{number}" for number in range(6)} <= set(known), cluster.where()
            assert cluster.checks.promises.keys() <= set(known)
            cluster.faults += 1
            cluster.heal()
            cluster.settle()


def test_the_last_two_of_three_voters_hand_the_term_on_for_the_one_that_leaves_votes_too() -> None:
    for seed in range(3):
        cluster, holder = formed("three-voters", seed)
        away, heir = (m for m in cluster.machines if m is not holder)
        away.kill()
        cluster.world.run(cluster.world.now + 3.0)
        holder.leave()
        assert cluster.world.run(cluster.world.now + 1.0, lambda heir=heir: heir.candidate.holding)


def test_one_that_leaves_says_so_at_once_and_is_no_heir() -> None:
    cluster, holder = formed("three-voters")
    leaving = next(m for m in cluster.machines if m is not holder)
    leaving.leave()
    cluster.world.run(cluster.world.now + 0.1)
    assert not holder.candidate.election.living[leaving.node].eligible


def test_a_holder_that_leaves_alone_or_beside_silent_ones_ends_in_time() -> None:
    cluster, holder = formed("three-voters")
    cut_off(cluster, holder)
    began = cluster.world.now
    holder.leave()
    assert cluster.world.run(began + 1.3, lambda: not holder.up)
    alone = Cluster(PLANS["pair"], 1)
    one = alone.machines[0]
    one.start()
    assert alone.world.run(10.0, lambda: one.candidate.holding)
    began = alone.world.now
    one.leave()
    assert alone.world.run(began + 0.05, lambda: not one.up), "there is nobody to wait for"


def test_the_term_goes_to_the_next_best_where_the_first_does_not_take_it() -> None:
    for plan in ("free", "five-voters"):
        cluster, holder = formed(plan)
        best = max((m for m in cluster.machines if m is not holder), key=lambda m: m.node)
        best.pause(asleep=True)
        holder.leave()
        others = [m for m in cluster.machines if m not in (holder, best)]
        assert cluster.world.run(
            cluster.world.now + 1.0,
            lambda others=others: any(m.candidate.holding for m in others),
        ), cluster.where()


def test_what_a_killed_process_left_unsynced_is_synced_before_it_is_acknowledged() -> None:
    cluster, holder = formed("three-voters")
    voter = next(m for m in cluster.machines if m is not holder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(voter.shell, "_flush_soon", lambda: None)
        holder.want(place("c"))
        cluster.world.run(cluster.world.now + 0.3)
        voter.kill()
    assert voter.disk.unsynced_bytes(), "its last entry is in the system's memory alone"
    voter.start()
    cluster.settle()
    assert not voter.disk.unsynced_bytes()
