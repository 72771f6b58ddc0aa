"""Ten faults of the past, each an exact edit of the product and the tests that must notice it.

`python -m tests.harness.mutants --planted` plants them one by one in a copy of the tree. An edit
whose text is gone fails loudly: move the fault to where the rule now stands.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.harness.mutations import Mutant


@dataclass(frozen=True)
class PlantedFault:
    """A fault, and tests of the gate of which at least one must fail."""

    mutant: Mutant
    tests: tuple[str, ...]


FAULTS = (
    PlantedFault(
        Mutant(
            "master/log/journal.py",
            "        try:\n            self._file.sync()\n",
            "        try:\n            pass\n",
            "the journal is not synced",
        ),
        ("tests/master/log/test_journal.py",),
    ),
    PlantedFault(
        Mutant(
            "master/consensus/shell.py",
            "                    self._unsynced = True\n",
            "                    self._unsynced = True\n"
            "                    now = self._timers.now()\n"
            "                    self._do(self.candidate.synced(now, degraded=False))\n",
            "an event is acknowledged before it is synced",
        ),
        ("tests/sim/test_scenarios.py",),
    ),
    PlantedFault(
        Mutant(
            "runner/schedule/scheduler.py",
            "        elif len(row.made) >= row.prepared.max_tokens:",
            "        if len(row.made) >= row.prepared.max_tokens:",
            "a row is finished twice",
        ),
        ("tests/runner/schedule/test_scheduler.py",),
    ),
    PlantedFault(
        Mutant(
            "runner/serving/open_request.py",
            "        while held and open_choice.credit > 0:",
            "        while held:",
            "credit is ignored",
        ),
        ("tests/runner/lead/test_open_text.py",),
    ),
    PlantedFault(
        Mutant(
            "runner/text/grammar/row_matcher.py",
            "        for token in made:\n            row.consume(token)\n",
            "",
            "a grammar is not brought back to where its row was preempted",
        ),
        ("tests/runner/mlx/test_grammar_rows.py",),
    ),
    PlantedFault(
        Mutant(
            "master/pool/turns.py",
            "    if copy.pinned_by is not None:",
            "    if False:",
            "a pin is ignored by eviction",
        ),
        ("tests/master/pool/test_turns.py",),
    ),
    PlantedFault(
        Mutant(
            "gateway/access/budgets.py",
            "        meter.ended(spent(), wall_s)\n",
            "",
            "the tokens of a key's requests are not counted",
        ),
        ("tests/gateway/access/test_api_keys.py",),
    ),
    PlantedFault(
        Mutant(
            "runner/text/stops.py",
            "        held = self.held_text\n        return self._walk(",
            "        held = self.flush()\n        return self._walk(",
            "a stop string over two deltas is missed",
        ),
        ("tests/runner/text/test_stops.py",),
    ),
    PlantedFault(
        Mutant(
            "gateway/requests/dispatcher.py",
            "            remaining_ms = max(1, int(1000 * (request.deadline_at - now)))\n",
            "            remaining_ms = NEVER_MS\n",
            "a deadline is not passed on to the runner",
        ),
        ("tests/gateway/http/test_server.py",),
    ),
    PlantedFault(
        Mutant(
            "master/consensus/election.py",
            "    counter = max(election.counter, election.seen) + 1\n",
            "    counter = max(election.counter, election.seen)\n",
            "a term is not raised above those before",
        ),
        ("tests/master/consensus/test_election.py",),
    ),
)
