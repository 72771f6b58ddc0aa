"""The verifiers (other runners) that a runner drafts for, and the tokens of their rows that were
sent so far.

Pure. A verifier sends a row's tokens once. Each question names the number of the row's tokens that
this runner already has. If the runner has fewer, its refusal has the right number. A verifier has
at most `MOST_ROWS` rows; the row that was asked about longest ago is dropped for a new one. A
verifier is not trusted: any field may be wrong, and a wrong field is answered with a refusal.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from bus.wire.data_frames import unpack_ids
from bus.wire.errors import Refusal
from bus.wire.ids import TokenId
from bus.wire.proposals import (
    LONGEST_BLOCK,
    PROPOSE_S,
    FromProposer,
    ProposalRefused,
    Propose,
    ToProposer,
    Withdraw,
)

MOST_ROWS = 64
SendProposal = Callable[[bytes, FromProposer], None]


class ProposalTaker(Protocol):
    """Answers verifiers; called in the main thread. `peer` is a socket identity."""

    def take(self, peer: bytes, message: ToProposer, now: float) -> None:
        """Answer a message of a verifier."""
        ...

    def alive(self, peer: bytes, now: float) -> None:
        """Record that a gateway process or a verifier is alive."""
        ...

    def drop(self, peer: bytes) -> None:
        """Forget a gateway process or a verifier that is gone."""
        ...


class NoProposals:
    """Refuses all verifiers, because the runner's model or engine makes no drafts."""

    def __init__(self, send: SendProposal) -> None:
        self._send = send

    def take(self, peer: bytes, message: ToProposer, now: float) -> None:
        if not isinstance(message, Withdraw):
            refusal = Refusal(reason="unsupported", message="this runner makes no drafts")
            number = message.number if isinstance(message, Propose) else 0
            self._send(peer, ProposalRefused(number, refusal, 0))

    def alive(self, peer: bytes, now: float) -> None:
        """Do nothing: no verifier is attached."""

    def drop(self, peer: bytes) -> None:
        """Do nothing: no verifier is attached."""


@dataclass(slots=True)
class VerifierTexts:
    """The rows of one attached verifier. A token is valid below `vocabulary`; a row with its draft
    has at most `context_tokens` tokens."""

    vocabulary: int
    context_tokens: int
    rows: OrderedDict[int, list[TokenId]] = field(default_factory=OrderedDict[int, list[TokenId]])

    def take(self, message: Propose) -> list[TokenId] | ProposalRefused:
        """Add the message's tokens to the row from number `base` on, in place of any tokens that
        were there. Return all tokens of the row, or a refusal."""
        if (refusal := self._wrong(message)) is not None:
            return ProposalRefused(message.number, refusal, 0)
        text = self.rows.get(message.row, [])
        if message.base > len(text):
            why = f"row {message.row} has {len(text)} tokens here, not {message.base}"
            refusal = Refusal(reason="conflict", message=why)
            return ProposalRefused(message.number, refusal, len(text))
        text = [*text[: message.base], *map(TokenId, unpack_ids(message.tokens))]
        if not 0 < message.prompt <= len(text):
            why = f"prompt: must be 1 to {len(text)} (the row's tokens), not {message.prompt}"
            return ProposalRefused(message.number, Refusal(reason="bad_request", message=why), 0)
        self.rows[message.row] = text
        self.rows.move_to_end(message.row)
        if len(self.rows) > MOST_ROWS:
            self.rows.popitem(last=False)
        return text

    def _wrong(self, message: Propose) -> Refusal | None:
        if message.length > LONGEST_BLOCK:
            why = f"length: {message.length} tokens; the limit is {LONGEST_BLOCK}"
            return Refusal(reason="bad_request", message=why, field="length")
        if message.remaining_ms > PROPOSE_S * 1000:
            why = f"remaining_ms: {message.remaining_ms}; the limit is {PROPOSE_S * 1000:.0f}"
            return Refusal(reason="bad_request", message=why, field="remaining_ms")
        if 0 < message.steps < message.length:
            why = f"steps: a draft model takes {message.length} steps, not {message.steps}"
            return Refusal(reason="unsupported", message=why, field="steps")
        try:
            tokens = unpack_ids(message.tokens)
        except ValueError as error:
            return Refusal(reason="bad_request", message=f"tokens: {error}", field="tokens")
        if (worst := max(tokens, default=0)) >= self.vocabulary:
            why = f"tokens: {worst} is not below {self.vocabulary}, the size of the vocabulary"
            return Refusal(reason="bad_request", message=why, field="tokens")
        if (total := message.base + len(tokens) + message.length) > self.context_tokens:
            why = f"a row of {total} tokens with its draft; the limit is {self.context_tokens}"
            return Refusal(reason="context_length", message=why)
        return None
