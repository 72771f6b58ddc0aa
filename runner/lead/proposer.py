"""Talks to the engine's loop: drafts tokens for the rows of other runners (*verifiers*).

Runs in the main thread. A draft is a row of the scheduler like any other. It shares steps with the
runner's own rows, and its prompt is computed in chunks. The KV of its tokens is found again as a
kept prefix. So a long draft delays nothing. Its tokens are sampled with the verifier's seed and
settings, and are never drafted themselves. While an attached verifier sends pings, this instance
counts as in use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bus.service import Shell
from bus.wire.data_frames import pack_ids
from bus.wire.errors import FailReason, Refusal, RefusalReason
from bus.wire.ids import ModelId, RequestId, TokenId
from bus.wire.messages.requests import GenerationRequest, TokensPrompt
from bus.wire.proposals import (
    Attach,
    Attached,
    ProposalRefused,
    Propose,
    Proposed,
    ToProposer,
    Withdraw,
)
from runner import schedule
from runner.lead.lead_loop import LeadLoop, Stepped
from runner.serving import RequestServer, VerifierTexts
from runner.text import PreparedChoice, PreparedRequest

MOST_OPEN = 16
"""The most drafts that are computed for one verifier at a time."""
REASONS: dict[FailReason, RefusalReason] = {
    "context_length": "context_length",
    "memory_pressure": "insufficient_memory",
    "bad_request": "bad_request",
    "deadline": "not_ready",
}


@dataclass(slots=True)
class DraftBlock:
    """A draft that is being computed. `first_step`: the engine's last step before the draft's row
    began; the steps of the draft are counted from it."""

    peer: bytes
    message: Propose
    first_step: int
    tokens: list[TokenId] = field(default_factory=list[TokenId])


class RowProposer:
    """The `ProposalTaker` of a generative model. `digest` returns the digest of its tokens, empty
    if they cannot be read. It is called in a thread when the first verifier attaches. `vocabulary`:
    this digest, once it was computed; None before. `blocks`: the drafts that are being computed."""

    def __init__(
        self, server: RequestServer, shell: Shell, loop: LeadLoop, digest: Callable[[], str]
    ) -> None:
        self.vocabulary: str | None = None
        self._digest = digest
        self._reading: threading.Thread | None = None
        self._attaching: dict[bytes, Attach] = {}
        self._call = shell.reactor.call
        self._server = server
        self._loop = loop
        self._log = shell.log
        self._now = shell.reactor.now
        self._verifiers: dict[bytes, VerifierTexts] = {}
        self.blocks: dict[RequestId, DraftBlock] = {}
        self._serial = 0

    # --- from verifiers ------------------------------------------------------------------

    def take(self, peer: bytes, message: ToProposer, now: float) -> None:
        if isinstance(message, Withdraw):
            self._withdraw(peer, message.row)
            return
        refusal = self._not_now() if isinstance(message, Propose) else self._unfit(message)
        if refusal is not None:
            number = message.number if isinstance(message, Propose) else 0
            self._server.send(peer, ProposalRefused(number, refusal, 0))
        elif isinstance(message, Propose):
            self._propose(peer, message, now)
        else:
            self._attach(peer, message)

    def alive(self, peer: bytes, now: float) -> None:
        """Keep the instance in use while a verifier is attached."""
        if peer in self._verifiers:
            self._server.totals.used_at = now

    def drop(self, peer: bytes) -> None:
        self._attaching.pop(peer, None)
        if self._verifiers.pop(peer, None) is not None:
            self._log.info("a verifier is gone", peer=peer.decode(errors="replace"))
            for request_id in [key for key, block in self.blocks.items() if block.peer == peer]:
                self._cancel(request_id)

    # --- from the engine -----------------------------------------------------------------

    def stepped(self, news: Stepped) -> None:
        """Send the drafts that are complete after a step."""
        for event in news.events:
            block = self.blocks.get(event.key.request_id)
            if block is None:
                continue
            match event:
                case schedule.RowStarted():
                    block.first_step = news.step
                case schedule.RowToken(sampled=sampled):
                    block.tokens.append(sampled.token)
                case schedule.RowFinished():
                    del self.blocks[event.key.request_id]
                    self._finished(block, news.step)
                case schedule.RowFailed(reason=reason, message=message):
                    del self.blocks[event.key.request_id]
                    refusal = Refusal(reason=REASONS.get(reason, "not_ready"), message=message)
                    self._refuse(block, refusal)
                case schedule.RowPrefilled() | schedule.RowScored():
                    pass

    # --- below ---------------------------------------------------------------------------

    def _not_now(self) -> Refusal | None:
        phase, model = self._server.phase, self._server.spec.model
        if phase == "draining":
            return Refusal(reason="draining", message=f"{model} is being unloaded on this node")
        if phase != "ready" or self._loop.facts is None:
            return Refusal(reason="not_ready", message=f"{model} is {phase} on this node")
        return None

    def _unfit(self, message: Attach) -> Refusal | None:
        """Return why this runner does not draft for a verifier; None if it does."""
        spec = self._server.spec
        if message.model != spec.model:
            return Refusal(
                reason="unknown_model",
                message=f"this runner drafts with {spec.model}, not with {message.model}",
            )
        if message.generation != spec.generation:
            why = f"this runner serves generation {spec.generation}, not {message.generation}"
            return Refusal(reason="wrong_generation", message=why)
        if (refusal := self._not_now()) is not None:
            return refusal
        if self.vocabulary is not None and self.vocabulary != (message.vocabulary or None):
            why = f"the tokenizer of {spec.model} has another vocabulary"
            return Refusal(reason="unsupported", message=why)
        return None

    def _attach(self, peer: bytes, message: Attach) -> None:
        """Attach a verifier, once the digest of the vocabulary is there."""
        facts = self._loop.facts
        assert facts is not None, "the engine is not loaded"
        if self.vocabulary is None:
            self._attaching[peer] = message
            if self._reading is None:
                read = self._read_vocabulary
                self._reading = threading.Thread(target=read, name="digest", daemon=True)
                self._reading.start()
            return
        self._verifiers[peer] = VerifierTexts(facts.vocabulary, facts.context_tokens)
        self._log.info(
            "this runner now drafts for another runner", peer=peer.decode(errors="replace")
        )
        self._server.send(peer, Attached(facts.context_tokens))

    def _read_vocabulary(self) -> None:
        """Compute the digest of the model's tokens. This runs in a thread of its own, because the
        file may be large."""
        digest = self._digest()

        def digested() -> None:
            """Answer the verifiers that have waited for the digest."""
            self.vocabulary = digest
            attaching, self._attaching = self._attaching, {}
            for peer, message in attaching.items():
                self.take(peer, message, self._now())

        self._call(digested)

    def _propose(self, peer: bytes, message: Propose, now: float) -> None:
        texts = self._verifiers.get(peer)
        if texts is None:
            refusal = Refusal(reason="bad_request", message="attach before asking for drafts")
            self._server.send(peer, ProposalRefused(message.number, refusal, 0))
            return
        self._supersede(peer, message.row)
        text = texts.take(message)
        if isinstance(text, ProposalRefused):
            self._server.send(peer, text)
            return
        block = DraftBlock(peer, message, self._loop.status.steps_done)
        if sum(other.peer == peer for other in self.blocks.values()) >= MOST_OPEN:
            why = f"too many open drafts for this verifier: the limit is {MOST_OPEN}"
            self._refuse(block, Refusal(reason="queue_full", message=why))
            return
        self._server.totals.used_at = now
        self._serial += 1
        prepared = _prepared(self._server.spec.model, self._serial, peer, message, text)
        with self._loop.scheduling() as scheduler:
            placed = scheduler.submit(
                prepared,
                seeds=[message.seed],
                now=now,
                deadline_at=now + message.remaining_ms / 1000,
                sharer=("drafts", peer.decode(errors="replace")),
                made=[text[message.prompt :]],
            )
        if isinstance(placed, Refusal):
            self._refuse(block, placed)
            return
        if placed.displaced is not None:
            self._server.give_back(placed.displaced, begun=False)
        self.blocks[prepared.request_id] = block

    def _finished(self, block: DraftBlock, step: int) -> None:
        length = block.message.length
        if len(block.tokens) != length:
            why = f"the draft has {len(block.tokens)} of {length} tokens"
            self._refuse(block, Refusal(reason="not_ready", message=why))
            return
        peak_bytes = self._loop.status.memory.peak_bytes
        passes = max(step - block.first_step, length)
        tokens = pack_ids(block.tokens)
        self._server.send(
            block.peer, Proposed(block.message.number, tokens, length, passes, peak_bytes)
        )

    def _refuse(self, block: DraftBlock, refusal: Refusal) -> None:
        self._server.send(block.peer, ProposalRefused(block.message.number, refusal, 0))

    def _withdraw(self, peer: bytes, row: int) -> None:
        texts = self._verifiers.get(peer)
        if texts is not None:
            texts.rows.pop(row, None)
            self._supersede(peer, row)

    def _supersede(self, peer: bytes, row: int) -> None:
        """Stop the draft that is being computed for this row, because a newer question replaces
        it."""
        for request_id, block in tuple(self.blocks.items()):
            if (block.peer, block.message.row) == (peer, row):
                self._cancel(request_id)

    def _cancel(self, request_id: RequestId) -> None:
        del self.blocks[request_id]
        if self._server.phase != "ended":
            with self._loop.scheduling() as scheduler:
                scheduler.cancel(request_id, self._now())


def _prepared(
    model: ModelId, serial: int, peer: bytes, message: Propose, text: Sequence[TokenId]
) -> PreparedRequest:
    """Return the request for a draft after the tokens `text` of a row. Only drafts of the same row
    share KV."""
    name = peer.decode(errors="replace")
    request = GenerationRequest(
        request_id=RequestId(f"draft:{serial}"),
        model=model,
        prompt=TokensPrompt(token_ids=()),
        sampling=message.sampling,
        ignore_eos=True,
        key_id=f"drafts:{name}:{message.row}",
        speculate="off",
    )
    return PreparedRequest(
        request=request,
        tokens=tuple(text[: message.prompt]),
        max_tokens=len(text) - message.prompt + message.length,
        stop_token_ids=frozenset(),
        choices=(PreparedChoice(0, message.seed),),
    )
