"""A real gateway before a scripted runner: clients meet all of a node but its engine."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness.gateway_testbed import MODEL, ROOT, GatewayTestbed, gateway_testbed
from tests.harness.scripted_runner import Line
from tests.harness.slot import started_slot

BUNDLED = ROOT / "conf" / "tiny"
CONTEXT_TOKENS = 40_000
"""Room for the prompts of coding agents, some 25,000 tokens of this tokenizer, and little more."""


@dataclass
class Placed:
    """The scripted runner, as the cluster's state knows it."""

    address: str
    instance: str
    generation: int


@contextmanager
def scripted_gateway(
    script: Sequence[Line], model: Path = BUNDLED, **options: object
) -> Iterator[GatewayTestbed]:
    """Serve the script as the bundled model, with the tokenizer and the template in `model`."""
    with (
        tempfile.TemporaryDirectory(prefix="shoal-script-", dir="/tmp") as folder,
        gateway_testbed(**options) as bed,
    ):
        file = Path(folder) / "script.json"
        file.write_text(json.dumps(script))
        home = Path(folder) / "home"
        fields = {"model": MODEL, "context_tokens": CONTEXT_TOKENS}
        with started_slot(home, model, script=file, **fields) as slot:
            slot.ready()
            spec = slot.spec
            placed = Placed(spec.addresses[0], str(spec.instance), spec.generation)
            bed.publish_card(MODEL, context_tokens=CONTEXT_TOKENS)
            bed.place(placed, context_tokens=CONTEXT_TOKENS)
            yield bed
