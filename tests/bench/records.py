"""What a gateway's records cost: streams of 1,000 and of 20 tokens, with and without.

One gateway that logs requests and keeps responses, one that does neither, and one that logs alone
take turns, each round another one first: `--streams` responses at once, again and again. Counted
are the HTTP process's own time on processors, of all its threads, and the clock; a ratio is of two
contestants of the same round, and told with its quartiles. Run:

    python -m tests.bench.records [--rounds N] [--json FILE]

The aim: at most 1.02 times what it is without. Streams come as fast as the gateway can pass them
on, which no model does: `--every-ms` has the runner wait before each token, as a model would, where
the clock tells what a client sees. Prints the figures, the aim and the load of the machine. It
never fails for one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.bench.dialects_flat_out import Asked, Cost, Gateway, cost_of, dialects
from tests.bench.request_log import AIM, gateway_of

PLAIN, LOGGED, KEPT = "neither", "log", "log and kept"


@dataclass(frozen=True)
class Turn:
    """A contestant: a gateway, and how it is asked."""

    gateway: Gateway
    asked: Asked


def turns_of(stack: ExitStack, orders: str) -> dict[str, Turn]:
    """Start the gateways; all end with the stack."""
    asked = dialects(orders)["responses"]
    keeps = replace(asked, fields={**asked.fields, "store": True})
    return {
        PLAIN: Turn(gateway_of(stack, request_rows=0, answer_rows=0), asked),
        LOGGED: Turn(gateway_of(stack), asked),
        KEPT: Turn(gateway_of(stack), keeps),
    }


def rounds_of(
    streams: int, tokens: int, every_ms: float, again: int, rounds: int
) -> list[dict[str, Cost]]:
    """Return what a token took with each contestant, round by round."""
    found: list[dict[str, Cost]] = []
    with ExitStack() as stack:
        turns = turns_of(stack, f"tokens={tokens} every_ms={every_ms:g}")
        names = [*turns]
        for number in range(rounds + 1):
            at = number % len(names)
            costs: dict[str, Cost] = {}
            for name in names[at:] + names[:at]:
                turn = turns[name]
                took = [cost_of(turn.gateway, turn.asked, streams, tokens) for _ in range(again)]
                costs[name] = Cost(
                    statistics.fmean(one.cpu_us for one in took),
                    statistics.fmean(one.wall_us for one in took),
                )
            # the first round warms up
            found += [costs] if number else []
    return found


def compared(rounds: Sequence[Mapping[str, Cost]], tokens: int) -> list[dict[str, Any]]:
    """Return a row for each contestant and measure: a token's median, its ratio to that of the one
    without, with quartiles, and what a request takes more."""
    rows: list[dict[str, Any]] = []
    for name in rounds[0]:
        for measure in ("cpu_us", "wall_us"):
            mine = [asdict(one[name])[measure] for one in rounds]
            base = [asdict(one[PLAIN])[measure] for one in rounds]
            ratios = sorted(a / b for a, b in zip(mine, base, strict=True))
            more = [(a - b) * tokens for a, b in zip(mine, base, strict=True)]
            row = {
                "with": name,
                "measure": measure,
                "us_per_token": statistics.median(mine),
                "ratio": statistics.median(ratios),
                "quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
                "us_per_request": statistics.median(more),
            }
            rows.append(row)
    return rows


def show(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows."""
    print(f"{title}; load average {os.getloadavg()[0]:.1f}")
    for row in rows:
        if row["with"] == PLAIN:
            print(f"  {row['with']:<13}{row['measure']:<8}{row['us_per_token']:9.2f} us a token")
            continue
        low, high = row["quartiles"]
        met = "" if row["measure"] != "cpu_us" else "met" if row["ratio"] <= AIM else "MISSED"
        print(
            f"  {row['with']:<13}{row['measure']:<8}{row['us_per_token']:9.2f} us a token: "
            f"{row['ratio']:.3f} x ({low:.3f} to {high:.3f}), {row['us_per_request']:+.0f} us a "
            f"request {met and f'(at most {AIM}: {met})'}"
        )


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--streams", type=int, default=32)
    arguments.add_argument("--tokens", default="1000,20", help="tokens of one stream, by commas")
    arguments.add_argument("--every-ms", type=float, default=0.0)
    arguments.add_argument("--again", type=int, default=4, help="times the streams, a round")
    arguments.add_argument("--rounds", type=int, default=12)
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    found: dict[str, Any] = {}
    for tokens in map(int, given.tokens.split(",")):
        again = given.again if tokens > 100 else 5 * given.again
        rounds = rounds_of(given.streams, tokens, given.every_ms, again, given.rounds)
        found[f"{tokens} tokens"] = rows = compared(rounds, tokens)
        show(f"{given.streams} streams of {tokens} tokens", rows)
    if given.json:
        given.json.parent.mkdir(exist_ok=True)
        given.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
