"""Decides which requests resume after the loss of their runner, and keeps their tokens (decision
0098).

Pure: time arrives as `now`. If a runner dies, each request that it was computing is a suspect. A
runner computes one suspect at a time until it has made some tokens. If a runner dies while exactly
one suspect is on trial there, that one is the culprit, and no other request becomes a suspect. A
runner that ended on purpose makes no suspects.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from bus.wire.data_frames import unpack_ids
from bus.wire.errors import FailReason
from bus.wire.ids import RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import (
    TRIAL_TOKENS,
    AnswerSoFar,
    Begun,
    ChoiceSoFar,
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
    """An open request of a lost runner. `computed`: the runner had begun it, and its client had
    credit, so it may have been in the last step. `is_suspect`: since an earlier death.
    `on_trial`: the runner had begun that suspect, which had not yet made enough tokens."""

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
    """How a request is submitted: whether the runner reports its tokens (`resumes`), the answer so
    far, how many runners were lost with it, and whether it is a suspect."""

    so_far: AnswerSoFar | None = None
    resumes: bool = False
    deaths: int = 0
    suspect: bool = False


class Resumable(Protocol):
    """A request whose runner can be lost."""

    @property
    def is_suspect(self) -> bool:
        """Return whether it is a suspect that has not yet made enough tokens."""
        ...

    @property
    def on_trial(self) -> bool:
        """Return whether its runner has begun it as a suspect."""
        ...

    def lost(self, loss: Loss, now: float) -> None:
        """The runner that had accepted the request is lost; the observer's last call."""
        ...


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
    """Return why a request can't resume; empty if it can. `deaths` are earlier ones. `is_kept`: its
    tokens are kept, or it has none."""
    if verdict == "culprit":
        return "a second runner died while it computed this request, so it is not tried again"
    if deaths >= MOST_DEATHS:
        return f"the request was already resumed {MOST_DEATHS} times"
    if not is_kept:
        return "its tokens exceeded the memory that this gateway has for resuming requests"
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

    def add(self, entry: TokenDelta | ToolCallDelta) -> bool:
        """Keep the tokens of an entry; return False if the memory for that is full."""
        choice = self._choices[entry.choice]
        choice.sent += 1
        choice.later = entry.later
        if entry.ids:
            if len(entry.ids) % 4 or not self._memory.take(len(entry.ids)):
                return False
            self._bytes += len(entry.ids)
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
    """The state with which one request outlives its runner. `memory` None: it ends with its runner.

    `deaths`: how many runners were lost with it. `is_suspect`: the last of them may have died
    because of it, and it has not yet made enough tokens since. `computes`: its runner has begun it.
    `over`: the choices that have ended. `kept`: its tokens, from its first `Begun` on.
    """

    def __init__(self, memory: KeptMemory | None = None) -> None:
        self.deaths = 0
        self.is_suspect = self.computes = False
        self.over: set[int] = set()
        self.kept: KeptTokens | None = None
        self._memory = memory
        self._is_dropped = False
        self._trial_ends = 0
        self._began_at = self._first_at = 0.0

    @property
    def is_on(self) -> bool:
        """Return whether runners report the request's tokens."""
        return self._memory is not None and not self._is_dropped

    def began(self, begun: Begun, tokens: int, now: float) -> None:
        """A runner has begun the request, of which `tokens` tokens were made before."""
        self.computes, self._began_at, self._first_at = True, now, 0.0
        self._trial_ends = tokens + TRIAL_TOKENS
        if self.kept is not None or self._memory is None or self._is_dropped:
            return
        if self._memory.take(len(begun.prompt)):
            self.kept = KeptTokens(begun, self._memory)
        else:
            self._is_dropped = True

    def keep(self, entry: TokenDelta | ToolCallDelta) -> None:
        """Keep the tokens of an entry; if the memory is full, keep nothing of the request."""
        if self.kept is not None and not self.kept.add(entry):
            self.end()
            self._is_dropped = True

    def made(self, tokens: int, now: float) -> None:
        """The request has made `tokens` tokens in all; after some, it is no suspect."""
        self._first_at = self._first_at or now
        if self.is_suspect and tokens >= self._trial_ends:
            self.is_suspect = False

    def suspended(self, so_far: AnswerSoFar) -> None:
        """A runner returned the request."""
        if self.kept is not None:
            self.kept.usage = so_far.usage

    def lost(self, verdict: Verdict, moved_at: float, now: float) -> str:
        """The request's runner is lost. Return why the request ends; empty if it resumes. Its last
        entry came at `moved_at`."""
        why = why_it_ends(verdict, self.deaths, is_kept=not self._is_dropped)
        if why:
            return why
        self.deaths += 1
        self.is_suspect = verdict == "suspect"
        if self.kept is not None and self.computes:
            first_at, last_at = self._first_at or now, moved_at if self._first_at else now
            self.kept.spent(first_at - self._began_at, last_at - first_at)
        self.computes = False
        return ""

    def so_far(self, *, logprobs: bool) -> AnswerSoFar | None:
        """Return the answer so far; None if no runner has begun the request."""
        return None if self.kept is None else self.kept.so_far(self.over, logprobs=logprobs)

    def end(self) -> None:
        """Free the memory of the kept tokens."""
        if self.kept is not None:
            self.kept.close()
        self.kept = None
