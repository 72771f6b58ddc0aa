"""Talks to MLX: opens the proposer (a draft model or an MTP head) that a model's card names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from runner.engine import EngineFacts
from runner.mlx.forward.forward import Forward
from runner.mlx.model.draft_trial import open_draft
from runner.mlx.model.last_token_head import LastTokenHead
from runner.mlx.model.load import Precision
from runner.mlx.mtp import BlockGuesses, MtpGuesses, open_block, open_head
from runner.mlx.sampling import DraftModel

MtpSource = tuple[Path, int]
"""The folder of an MTP head's weights, and the most tokens that the head guesses in succession."""


class ProposerSource(NamedTuple):
    """The files of a proposer: the folder of a draft model, or an MTP head, or the folder of a
    block drafter. The first that is not None counts."""

    draft: Path | None = None
    mtp: MtpSource | None = None
    block: Path | None = None


def with_proposer(
    forward: Forward,
    facts: EngineFacts,
    target: Path,
    tap: LastTokenHead,
    precision: Precision,
    source: ProposerSource,
) -> EngineFacts:
    """Load a proposer for the loaded model in the folder `target`. Return the model's facts with
    this proposer, or with the reason why it cannot be used. `tap` gives the model's embedding, its
    projection and its hidden states."""
    if source.draft is not None:
        loaded = open_draft(source.draft, target, precision)
        if isinstance(loaded, str):
            return replace(facts, no_draft_model=loaded)
        proposer = DraftModel(loaded, facts.vocabulary)
    elif source.mtp is not None:
        head = open_head(*source.mtp, facts, target, tap, precision)
        if isinstance(head, str):
            return replace(facts, no_mtp=head)
        proposer = MtpGuesses(head, facts.vocabulary)
    elif source.block is not None:
        opened = open_block(source.block, facts, target, tap, precision)
        if isinstance(opened, str):
            return replace(facts, no_block=opened)
        proposer = BlockGuesses(opened, facts.vocabulary)
    else:
        return facts
    forward.use(proposer)
    return proposer.applied(facts)
