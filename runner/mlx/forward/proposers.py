"""Talks to MLX: opens the proposer (a draft model or an MTP head) that a model's card names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runner.engine import EngineFacts
from runner.mlx.forward.forward import Forward
from runner.mlx.model.draft_trial import open_draft
from runner.mlx.model.last_token_head import LastTokenHead
from runner.mlx.model.load import Precision
from runner.mlx.mtp import MtpGuesses, open_head
from runner.mlx.sampling import DraftModel

MtpSource = tuple[Path, int]
"""The folder of an MTP head's weights, and the most tokens that the head guesses in succession."""


def with_proposer(
    forward: Forward,
    facts: EngineFacts,
    target: Path,
    tap: LastTokenHead,
    precision: Precision,
    draft: Path | None,
    mtp: MtpSource | None,
) -> EngineFacts:
    """Load a proposer for the loaded model in the folder `target`: the draft model in the folder
    `draft`, or the MTP head `mtp`. Return the model's facts with this proposer, or with the reason
    why it cannot be used. `tap` gives an MTP head the model's hidden states."""
    if draft is not None:
        loaded = open_draft(draft, target, precision)
        if isinstance(loaded, str):
            return replace(facts, no_draft_model=loaded)
        proposer = DraftModel(loaded, facts.vocabulary)
    elif mtp is not None:
        head = open_head(*mtp, facts, target, tap, precision)
        if isinstance(head, str):
            return replace(facts, no_mtp=head)
        proposer = MtpGuesses(head, facts.vocabulary)
    else:
        return facts
    forward.use(proposer)
    return proposer.applied(facts)
