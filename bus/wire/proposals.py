"""The data plane between two runners: one proposes drafts for the rows of the other (the
*verifier*).

Pure. The verifier connects to the proposer's data socket as a gateway process does: it says
`Hello`, is welcomed, and pings. Then it attaches once, and asks for drafts. Frames are arrays
(`bus.wire.array_frames`); versions before 15 lack them. A proposer is trusted with speed only: the
verifier checks each token of a draft, so a wrong draft never changes a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bus.wire.array_frames import ArrayFrame, Count, Positive
from bus.wire.errors import Refusal
from bus.wire.ids import ModelId
from bus.wire.messages.requests import Drafter, ProposalCost, Sampling
from bus.wire.messages.tokens import Goodbye, Hello, Ping, Pong, Welcome

LONGEST_BLOCK = 32
"""The most tokens of a draft that one `Propose` may ask for."""
PROPOSE_S = 60.0
"""A draft that has not arrived after this time is given up."""
PROPOSALS_PROTOCOL = 15
"""First version of the data plane with drafts of other runners."""


def sum_proposals(
    costs: Iterable[Mapping[Drafter, ProposalCost]],
) -> dict[Drafter, ProposalCost]:
    """Return the sums of passes and the largest peaks of memory, by drafter."""
    sums: dict[Drafter, ProposalCost] = {}
    for cost in costs:
        for drafter, (passes, peak_bytes) in cost.items():
            before = sums.get(drafter, (0, 0))
            sums[drafter] = (before[0] + passes, max(before[1], peak_bytes))
    return sums


# --- from a verifier to a proposer ------------------------------------------------------


class Attach(ArrayFrame, tag="attach", frozen=True):
    """The verifier wants drafts of `model`. `vocabulary`: a digest of its tokens; both models must
    have the same. Answered by `Attached` or `ProposalRefused` (`number` 0). An attached verifier
    that pings keeps the proposer's instance in use."""

    model: ModelId
    generation: int
    vocabulary: str


class Propose(ArrayFrame, tag="propose", frozen=True):
    """Draft the next `length` tokens of a row. Answered by `Proposed` or `ProposalRefused`.

    `number` counts up and names the answer; `row` names the row of this verifier. `tokens` are the
    row's tokens from number `base` on, packed (`pack_ids`): the tokens that the proposer lacks. It
    drops tokens of the row from number `base` on that it had before. The first `prompt` tokens of
    the row are its prompt. `steps`: the most passes of the model; 0: as the proposer needs. The
    draft is drawn as the target would draw it: with its `seed`, by position, and its `sampling`.
    `remaining_ms`: after this time the answer is worthless.
    """

    number: int
    row: int
    base: Count
    tokens: bytes
    prompt: Count
    length: Positive
    steps: Count
    seed: int
    sampling: Sampling
    remaining_ms: Positive


class Withdraw(ArrayFrame, tag="withdraw", frozen=True):
    """The row has ended: the proposer drops its tokens, and a draft in the making."""

    row: int


# --- from a proposer to a verifier ------------------------------------------------------


class Attached(ArrayFrame, tag="attached", frozen=True):
    """The proposer will draft. `context_tokens`: the most tokens of a row with its draft."""

    context_tokens: int


class Proposed(ArrayFrame, tag="proposed", frozen=True):
    """The draft number `number`: exactly `length` token ids, packed (`pack_ids`). It took `steps`
    passes that drew tokens, and `passes` passes in all. The others computed the row's new tokens.
    `peak_bytes`: the proposer's peak of accelerator memory."""

    number: int
    tokens: bytes
    steps: int
    passes: int
    peak_bytes: int


class ProposalRefused(ArrayFrame, tag="unproposed", frozen=True):
    """There is no draft number `number`; 0: the verifier is not attached. With the reason
    `conflict`, the proposer has only the first `has` tokens of the row, not `base`. Others are
    `unknown_model` (not found), `unsupported` (another vocabulary, too few steps),
    `context_length`, `queue_full`, `draining`, `not_ready`, `wrong_generation` and
    `bad_request`."""

    number: int
    refusal: Refusal
    has: int


ToProposer = Attach | Propose | Withdraw
FromProposer = Attached | Proposed | ProposalRefused
ToVerifier = Welcome | Goodbye | Pong | FromProposer
FromVerifier = Hello | Ping | ToProposer
