"""A row that is computed in slices of a few tokens: what to ask llama-server for, and which of its
tokens the row takes.

Pure. Some requests need more than a stream of text: formats, log-probabilities, penalties, thinking
budgets, minimum lengths, token ids. For each slice of their rows, llama-server gets the tokens so
far, which its KV cache already has, and returns the ids of a few more.

llama-server does not know the grammar. shoal checks the tokens of a slice against it, one by one.
It drops the first forbidden token and all tokens after it. Then it draws one token in place of the
dropped one, among the permitted tokens only. So each permitted token is as likely as under masked
sampling. Let A be the set of permitted tokens. The free draw gives y in A with p(y), the second
draw with (1 - p(A)) p(y) / p(A). Their sum is p(y) / p(A). A greedy token is the likeliest
permitted token in either case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from bus.wire.ids import TokenId
from runner.engine import RowId, SampledToken
from runner.llama.frames import Frame
from runner.text import PreparedRequest, ThinkingCount

NO_ROW = RowId(0)
"""The row id of tokens from llama-server, which does not use row ids."""
MOST_SLICE, SEEDED_SLICE, FIRST_SLICE = 16, 4, 2
"""The size of a slice in tokens. `MOST_SLICE`: the limit. `SEEDED_SLICE`: the limit if the request
has a seed, because the same seed must give the same text at any speed of the machine.
`FIRST_SLICE`: before the speed is measured."""
SLICE_S = 0.15
"""The time in seconds that a slice may take. Clients see all tokens of a slice at the same time."""
SCORED_MOST = 20_000
"""If llama-server gave no log-probability of a drawn token, shoal asks for those of this many
likeliest tokens, and looks for the token among them."""
RAISED = 1000.0
"""The bias of the permitted tokens. It makes all other tokens impossible, and does not change how
likely the permitted ones are among each other."""
MOST_SEED = 2**32 - 1
"""llama-server draws a seed of its own if it gets this one, so it is never sent."""
SEED_STEP = 0x9E3779B1
FIELDS = (
    "content", "tokens", "stop", "stop_type", "tokens_predicted", "timings",
    "completion_probabilities",
)  # fmt: skip
"""The fields of an answer that are sent; the others repeat the prompt and the request."""


class TokenMatcher(Protocol):
    """Follows a row in its grammar (`runner.text.RowMatcher`)."""

    def accepts(self, token: TokenId) -> bool:
        """Return whether `token` may come next."""
        ...

    def consume(self, token: TokenId) -> None:
        """Advance by `token`. Raises DeadEnd."""
        ...

    def allowed(self) -> NDArray[np.bool_]:
        """Return one flag per token, true if it may come next. Raises DeadEnd."""
        ...


def needs_slices(prepared: PreparedRequest) -> bool:
    """Return whether a request needs more than a stream of text, so that its rows need slices."""
    request, sampling = prepared.request, prepared.request.sampling
    return (
        prepared.grammar is not None
        or prepared.limit is not None
        or request.top_logprobs is not None
        or request.min_tokens is not None
        or request.history is not None
        or request.ignore_eos
        or sampling.frequency_penalty != 0.0
        or sampling.presence_penalty != 0.0
    )


@dataclass(slots=True)
class Slices:
    """The slices of one row. `made` are the row's tokens so far. `vocabulary` is the number of
    llama-server's tokens. `_due` are tokens that must come next instead of the model's own choice,
    because thinking has reached its budget."""

    prepared: PreparedRequest
    seed: int
    vocabulary: int
    matcher: TokenMatcher | None = None
    thinking: ThinkingCount | None = None
    made: list[TokenId] = field(default_factory=list[TokenId])
    _prompt: Literal["unread", "asked", "read"] = "unread"
    _unscored: TokenId | None = None
    _ends: set[TokenId] = field(default_factory=set[TokenId])
    _due: list[TokenId] = field(default_factory=list[TokenId])
    _permitted: Sequence[int] | None = None
    _asked_for: int = FIRST_SLICE
    _token_s: float = 0.0

    def forced(self) -> TokenId | None:
        """Return the next token if only one is possible. Return None if llama-server must draw it,
        or if its log-probability is wanted, which only llama-server knows."""
        if self.prepared.request.top_logprobs is not None:
            return None
        if self._due:
            return self._due[0]
        permitted = self._permitted
        return TokenId(permitted[0]) if permitted is not None and len(permitted) == 1 else None

    def reading(self, batch: int) -> dict[str, Any] | None:
        """Return the fields of a request that computes only the prompt and reports the progress.
        Return None if that was done, or if the prompt has no more than `batch` tokens."""
        if self._prompt == "unread" and len(self.prepared.tokens) > batch:
            self._prompt = "asked"
            return {"n_predict": 0}
        self._prompt = "read"
        return None

    def was_prompt(self) -> bool:
        """Return whether the last request only computed the prompt; its answer has no tokens."""
        return self._prompt == "asked"

    def asking(self) -> dict[str, Any]:
        """Return the fields of the request for the next slice."""
        request, made = self.prepared.request, self.made
        sampling = request.sampling
        held = (request.min_tokens or 0) - len(made)
        size = self._size(held)
        fields: dict[str, Any] = {
            "prompt": [*self.prepared.tokens, *made],
            "n_predict": size,
            "stream": False,
            "return_progress": False,
            "return_tokens": True,
            "response_fields": [*FIELDS],
            "seed": (self.seed + len(made) * SEED_STEP) % MOST_SEED,
        }
        if request.top_logprobs is not None:
            fields["n_probs"] = max(1, request.top_logprobs)
            fields["post_sampling_probs"] = False
        if sampling.frequency_penalty or sampling.presence_penalty:
            # llama-server counts these last tokens; a larger number would include the prompt
            fields["repeat_last_n"] = len(made)
            fields["frequency_penalty"] = sampling.frequency_penalty
            fields["presence_penalty"] = sampling.presence_penalty
        bias: dict[int, float | bool] = dict(sampling.logit_bias)
        if held > 0:
            bias |= dict.fromkeys(self.prepared.stop_token_ids, False)
        if self._unscored is not None:
            fields["n_probs"] = min(self.vocabulary, SCORED_MOST)
            fields["n_predict"] = 1
            bias = self._only([self._complete()], {})
            return fields | {"logit_bias": [[token, value] for token, value in bias.items()]}
        only = self._due[:1] or self._permitted
        if only is not None:
            bias = self._only(only, bias)
        fields["logit_bias"] = [[token, value] for token, value in bias.items()]
        self._asked_for = size
        return fields

    def took(self, seconds: float, tokens: int) -> None:
        """Record that a slice of `tokens` tokens took `seconds`."""
        self._token_s = seconds / max(1, tokens)

    def sampled(self, frame: Frame) -> list[SampledToken]:
        """Return the tokens of a slice, not checked against the grammar yet."""
        most = self.prepared.request.top_logprobs
        if most is None:
            return [SampledToken(NO_ROW, token) for token in frame.ids]
        if (unscored := self._unscored) is not None:
            self._unscored = None
            top = frame.scores[0].top if frame.scores else ()
            logprob = dict(top).get(unscored)
            if logprob is None:
                raise ValueError("llama-server gave no log-probability of a token")
            return [SampledToken(NO_ROW, unscored, logprob, top[:most])]
        made: list[SampledToken] = []
        for place, token in enumerate(frame.ids):
            if place >= len(frame.scores) or frame.scores[place].token != token:
                # llama-server scores no token that ends inside a character
                self._unscored = token
                break
            score = frame.scores[place]
            made.append(SampledToken(NO_ROW, token, score.logprob, score.top[:most]))
            self._ends = {token}
        return made

    @property
    def waits_for_score(self) -> bool:
        """Return whether llama-server has drawn the next token, but not given its log-probability
        yet; the next request asks for it."""
        return self._unscored is not None

    def drop_rest(self) -> None:
        """Drop a token that was drawn after the last token of the row, but has no log-probability
        yet."""
        self._unscored = None

    def may_come(self, token: TokenId) -> bool:
        """Return whether the grammar permits a token. If not, the next slice draws one token, among
        the permitted ones only. Raises DeadEnd."""
        if self.matcher is None or self.matcher.accepts(token):
            return True
        self._permitted = np.flatnonzero(self.matcher.allowed()).tolist()
        return False

    def add(self, token: TokenId) -> bool:
        """Add a token to the row. Return whether to drop the tokens after it in the slice, because
        the end of thinking is forced and other tokens must come next. Raises DeadEnd."""
        self.made.append(token)
        self._permitted = None
        if self.matcher is not None:
            self.matcher.consume(token)
        if self._due:
            del self._due[0]
        if self.thinking is not None:
            self.thinking.take(token)
            if not self._due and self.thinking.is_due:
                assert self.prepared.limit is not None, "thinking is counted without a limit"
                self._due = [*self.prepared.limit.ending]
        return bool(self._due)

    @property
    def goes_on(self) -> bool:
        """Return whether the row may continue after a token at which llama-server ends an
        answer."""
        request = self.prepared.request
        held = request.min_tokens is not None and len(self.made) < request.min_tokens
        return held or request.ignore_eos or self.matcher is not None

    def _size(self, held: int) -> int:
        """Return the number of tokens of the next slice. It is 1 if the penalties or the bias
        change with each token, because llama-server applies the same ones to a whole slice.
        `held`: how many more tokens must come before the answer may end."""
        sampling = self.prepared.request.sampling
        left = self.prepared.max_tokens - len(self.made)
        if self._due or self._permitted is not None:
            return 1
        if sampling.frequency_penalty or sampling.presence_penalty:
            return 1
        if held > 0:
            left = min(left, held)
        if sampling.temperature > 0.0 and sampling.seed is not None:
            return min(left, SEEDED_SLICE)
        if not self._token_s:
            return min(left, FIRST_SLICE)
        in_time = max(1, int(SLICE_S / self._token_s))
        return min(left, in_time, MOST_SLICE, 2 * self._asked_for)

    def _complete(self) -> TokenId:
        """Return a token that ends a character. llama-server gives scores only where it drew such a
        token, so a request for scores forces this one."""
        ends = self._ends or self.prepared.stop_token_ids
        if not ends:
            raise ValueError("no token of this vocabulary is known to end a character")
        return TokenId(min(ends))

    def _only(
        self, tokens: Sequence[int], bias: dict[int, float | bool]
    ) -> dict[int, float | bool]:
        """Return the bias under which only `tokens` can come. If they are few, they get a large
        bias. Otherwise all other tokens are excluded; so they are with a repetition penalty, which
        would divide a large bias."""
        is_plain = self.prepared.request.sampling.repetition_penalty == 1.0
        if is_plain and 2 * len(tokens) <= self.vocabulary:
            raised: dict[int, float | bool] = {}
            for token in tokens:
                own = bias.get(token, 0.0)
                raised[token] = own if own is False else RAISED + own
            return raised
        others = np.ones(self.vocabulary, dtype=np.bool_)
        others[[token for token in tokens if token < self.vocabulary]] = False
        return {**bias, **dict.fromkeys(np.flatnonzero(others).tolist(), False)}
