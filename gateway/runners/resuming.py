"""Decides which requests resume after the loss of their runner, and keeps their tokens (decision
0098).

Pure: time arrives as `now`. If a runner dies, each request that it was computing is a suspect: it
may have killed the runner. The next runner of a suspect tries it alone: no other request begins
there until the suspect has some tokens. If that runner dies while exactly one suspect is on trial,
this one is the culprit and does not resume, and no other request becomes a suspect. A runner that
ended on purpose makes no suspects.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bus.wire.data_frames import unpack_ids
from bus.wire.errors import FailReason
from bus.wire.ids import RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import (
    TRIAL_TOKENS,
    AnswerSoFar,
    Begun,
    ChoiceEnd,
    ChoiceSoFar,
    Entry,
    Failed,
    Finished,
    RawLogprob,
    TokenDelta,
    ToolCallDelta,
)

MOST_DEATHS = 3
"""A request resumes at most this many times."""
KEPT_BYTES = 64 << 20
"""Bytes of token ids that one HTTP process keeps."""
LOST: Collection[FailReason] = ("runner_lost", "model_unavailable")
"""A request that ends for such a reason may resume elsewhere; after the first, its runner died."""
Verdict = Literal["innocent", "suspect", "culprit"]
_UNSENT: RawLogprob = (0.0, ())


@dataclass(frozen=True, slots=True)
class Occupant:
    """An open request of a lost runner. `computed`: the runner had begun it and had credit for it,
    so it may have been in the last step. `is_suspect`: it was a suspect before. `on_trial`: it was
    a suspect that this runner had begun and that did not have enough tokens yet."""

    request_id: RequestId
    computed: bool
    is_suspect: bool = False
    on_trial: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    """A runner was lost. A request that can't resume ends with `reason` and `message`."""

    reason: FailReason
    message: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Resumption:
    """The part of a submit about earlier runners. `so_far`: the answer so far. `resumes`: the new
    runner must report the request's tokens, so that the request can resume again if this runner
    is lost, too. `deaths`: how many runners were lost with the request. `suspect`: the request may
    have killed the last one."""

    so_far: AnswerSoFar | None = None
    resumes: bool = False
    deaths: int = 0
    suspect: bool = False


def judge(occupants: Sequence[Occupant], *, died: bool) -> dict[RequestId, Verdict]:
    """Return the verdict on each request of a lost runner. `died`: it did not end on purpose."""
    tried = [occupant.request_id for occupant in occupants if occupant.on_trial]
    culprit = tried[0] if died and len(tried) == 1 else None
    verdicts: dict[RequestId, Verdict] = {}
    for occupant in occupants:
        may_have_killed = died and culprit is None and occupant.computed
        was_suspect = occupant.is_suspect and culprit is None
        verdicts[occupant.request_id] = "suspect" if may_have_killed or was_suspect else "innocent"
    if culprit is not None:
        verdicts[culprit] = "culprit"
    return verdicts


def why_it_ends(verdict: Verdict, deaths: int, *, is_kept: bool) -> str:
    """Return why a request can't resume; empty if it can. `deaths`: how often it resumed before.
    `is_kept`: the gateway has all its tokens, or it has none yet."""
    if verdict == "culprit":
        return "a second runner died while it computed this request, so it is not tried again"
    if deaths >= MOST_DEATHS:
        return f"the request was already resumed {MOST_DEATHS} times"
    if not is_kept:
        return (
            "the request's tokens exceeded the memory that this gateway has for resuming requests"
        )
    return ""


@dataclass(slots=True)
class KeptMemory:
    """The bytes of token ids that a process keeps, and their limit."""

    limit_bytes: int = KEPT_BYTES
    used_bytes: int = 0

    def take(self, count: int) -> bool:
        """Count more bytes, if they fit; return whether they do."""
        if self.used_bytes + count > self.limit_bytes:
            return False
        self.used_bytes += count
        return True


@dataclass(slots=True)
class _KeptChoice:
    """The packed ids of a choice, its number of received pieces, and the log-probabilities of its
    last tokens that no piece had."""

    seed: int
    ids: bytearray = field(default_factory=bytearray)
    sent: int = 0
    later: tuple[RawLogprob, ...] = ()


class KeptTokens:
    """The tokens of a request, from its `Begun` on. `usage` has the times at lost runners. After
    `close` it keeps nothing. `memory` had room for the prompt."""

    def __init__(self, begun: Begun, memory: KeptMemory) -> None:
        self.usage = Usage(cached_tokens=begun.cached_tokens)
        self._memory = memory
        self._prompt = begun.prompt
        self._max_tokens = begun.max_tokens
        self._choices = [_KeptChoice(seed) for seed in begun.seeds]
        self._bytes = len(begun.prompt)

    def first_report(self, request_id: RequestId) -> Begun:
        """Return the runner's report with which the record began."""
        seeds = tuple(choice.seed for choice in self._choices)
        cached_tokens = self.usage.cached_tokens
        return Begun(request_id, self._prompt, self._max_tokens, seeds, cached_tokens)

    def add(self, entry: TokenDelta | ToolCallDelta) -> bool:
        """Keep the tokens of an entry; return False if the memory for that is full."""
        choice = self._choices[entry.choice]
        choice.sent += 1
        choice.later = entry.later
        if entry.ids:
            size, memory = len(entry.ids), self._memory
            if size % 4 or memory.used_bytes + size > memory.limit_bytes:
                return False
            memory.used_bytes += size
            self._bytes += size
            choice.ids += entry.ids
        return True

    def spent(self, prefill_s: float, decode_s: float) -> None:
        """Add the times of a lost runner to the usage."""
        prefill_s, decode_s = self.usage.prefill_s + prefill_s, self.usage.decode_s + decode_s
        self.usage = self.usage.model_copy(update={"prefill_s": prefill_s, "decode_s": decode_s})

    def so_far(self, ended: Collection[int], *, logprobs: bool) -> AnswerSoFar:
        """Return the answer so far. `ended` are the choices whose end has come. These, and choices
        with all their tokens, make their last token again, and so their end."""
        choices: list[ChoiceSoFar] = []
        for number, choice in enumerate(self._choices):
            tokens = unpack_ids(choice.ids)
            later = choice.later[-len(tokens) :] if tokens else ()
            scores = (*[_UNSENT] * (len(tokens) - len(later)), *later) if logprobs else ()
            if number in ended or len(tokens) >= self._max_tokens:
                tokens, scores = tokens[:-1], scores[:-1]
            choices.append(ChoiceSoFar(choice.seed, tokens, choice.sent, scores))
        prompt = unpack_ids(self._prompt)
        return AnswerSoFar(prompt, self._max_tokens, tuple(choices), self.usage)

    def close(self) -> None:
        """Free the memory."""
        self._memory.used_bytes -= self._bytes
        self._bytes = 0


class Resuming:
    """The state with which one request can resume at another runner. `memory` None: it can't.

    `deaths`: how many runners were lost with it. `is_suspect`: the last of them may have died
    because of it, and it does not have enough tokens since then. `computes`: its runner has begun
    it, or has accepted it and reports no tokens. `is_lost`: its runner is lost, and it is not
    submitted again yet. `over`: the choices that have ended. `is_culprit`: a runner died during its
    trial. `record`: its tokens, from its first `Begun` on. `first_at`: when its present runner sent
    a first token; 0 if it has not. `paused_s`: the total time from the last entry of a lost runner
    to the first token of the next.
    """

    def __init__(self, memory: KeptMemory | None = None) -> None:
        self.deaths = 0
        self.is_suspect = self.computes = self.is_lost = self.is_culprit = False
        self.over: set[int] = set()
        self.record: KeptTokens | None = None
        self._memory = memory
        self._is_dropped = False
        self._trial_ends = self._first_deaths = 0
        self._began_at = self.first_at = self.paused_s = 0.0
        self._paused_at: float | None = None

    @property
    def is_on(self) -> bool:
        """Return whether runners are to report the request's tokens."""
        return self._memory is not None and not self._is_dropped

    @property
    def on_trial(self) -> bool:
        """Return whether its runner computes the request as a suspect."""
        return self.is_suspect and self.computes

    @property
    def resumes(self) -> int:
        """Return how often the request has resumed after a loss, in this gateway process."""
        return self.deaths - self._first_deaths

    @property
    def may_leave(self) -> bool:
        """Return whether the request may leave a silent runner, which may still be alive. It keeps
        one resume for a real loss."""
        may_resume = self.is_on and self.resumes < MOST_DEATHS - 1
        return may_resume and not self.is_suspect

    def submit(self, so_far: AnswerSoFar | None) -> Resumption:
        """Return the part of the next submit that is about earlier runners."""
        self.computes = self.is_lost = False
        return Resumption(so_far, self.is_on, self.deaths, self.is_suspect)

    def moved(self, moves: int) -> None:
        """Note that this process took over the request from an earlier gateway process, for the
        `moves`th time. A runner drops an older submission of a request if a newer one has more
        deaths. So the takeover counts as more deaths than the earlier process can have reported."""
        self.deaths = self._first_deaths = moves * (MOST_DEATHS + 1)

    def began(self, begun: Begun, now: float) -> None:
        """A runner has begun the request."""
        self.computes, self._began_at, self.first_at = True, now, 0.0
        if self.record is not None or self._memory is None or self._is_dropped:
            return
        if self._memory.take(len(begun.prompt)):
            self.record = KeptTokens(begun, self._memory)
        else:
            self._is_dropped = True

    def drop(self) -> None:
        """Keep no tokens of the request any more, because the memory for them is full."""
        self.end()
        self._is_dropped = True

    def count(self, before: int, tokens: int, now: float) -> None:
        """Record that `tokens` tokens arrived after the first `before` tokens of the answer.

        After `TRIAL_TOKENS` tokens from one runner the request is no longer a suspect. Call this
        for a runner's first tokens, and for all tokens of a suspect.
        """
        if not self.first_at:
            self.first_at, self._trial_ends = now, before + TRIAL_TOKENS
            if self._paused_at is not None:
                self.paused_s += now - self._paused_at
                self._paused_at = None
        if self.is_suspect and before + tokens >= self._trial_ends:
            self.is_suspect = False

    def news(self, entries: list[Entry]) -> tuple[list[Entry], list[int]]:
        """Return the entries without those of choices that had ended at a lost runner, because the
        next runner generates the last token of such a choice again. Also return the choices of the
        deltas that were left out, for their credit."""
        if not self.deaths or not self.over:
            return entries, []
        ended = [
            isinstance(entry, TokenDelta | ToolCallDelta | ChoiceEnd) and entry.choice in self.over
            for entry in entries
        ]
        pairs = list(zip(entries, ended, strict=True))
        pieces = (entry for entry, is_old in pairs if is_old and not isinstance(entry, ChoiceEnd))
        news = [entry for entry, is_old in pairs if not is_old]
        return news, [
            entry.choice for entry in pieces if isinstance(entry, TokenDelta | ToolCallDelta)
        ]

    def suspended(self, so_far: AnswerSoFar) -> None:
        """Record that a runner returned the request after a recall."""
        if self.record is not None:
            self.record.usage = so_far.usage

    def lost(self, verdict: Verdict, moved_at: float, now: float) -> str:
        """Record that the runner is lost. Return why the request ends; empty if it resumes. The
        runner's last entry came at `moved_at`."""
        self.is_culprit = verdict == "culprit"
        why = why_it_ends(verdict, self.resumes, is_kept=not self._is_dropped)
        if why:
            return why
        self.deaths += 1
        if self._paused_at is None:
            self._paused_at = moved_at
        self.is_suspect, self.is_lost = verdict == "suspect", True
        if self.record is not None and self.computes:
            first_at, last_at = self.first_at or now, moved_at if self.first_at else now
            self.record.spent(first_at - self._began_at, last_at - first_at)
        return ""

    def so_far(self, *, logprobs: bool) -> AnswerSoFar | None:
        """Return the answer so far; None if no runner has begun the request."""
        return None if self.record is None else self.record.so_far(self.over, logprobs=logprobs)

    def explained(self, failed: Failed) -> Failed:
        """Return a runner's failure, with the reason if the request could not resume after it."""
        is_known = self.record is not None or self.deaths
        if failed.reason != "runner_lost" or not self.is_on or is_known:
            return failed
        text = f"{failed.message}; the answer cannot resume, because its runner reports no tokens"
        first = failed.request_id, failed.seq, failed.reason, text
        return Failed(*first, failed.usage, failed.details)

    def counted(self, last: Finished | Failed) -> Finished | Failed:
        """Return the terminal entry, with the resumes in its usage."""
        if not self.resumes:
            return last
        update = {"resumes": self.resumes, "paused_s": self.paused_s}
        usage = last.usage.model_copy(update=update)
        if isinstance(last, Finished):
            return Finished(last.request_id, last.seq, usage, last.prompt)
        return Failed(last.request_id, last.seq, last.reason, last.message, usage, last.details)

    def end(self) -> None:
        """Free the memory of the tokens."""
        if self.record is not None:
            self.record.close()
        self.record = None
