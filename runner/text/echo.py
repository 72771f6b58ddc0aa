"""Report each token of prompt and output to a request that asks for its prompt.

Pure. A prompt's tokens come in pieces of at most `PIECE_TOKENS`, with the text that they complete
and their log-probabilities. Every sampled token is reported with its log-probability, also a token
without text, such as the end token. So clients can count tokens from the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from bus.wire.errors import FinishReason
from bus.wire.ids import TokenId
from bus.wire.messages.tokens import TokenLogprob
from runner.engine import PromptScores, SampledToken
from runner.text.choice import logprob_of
from runner.text.detokenise import Detokeniser
from runner.text.prepared import (
    ChoiceFinish,
    ChoiceOutput,
    ChoiceReader,
    Piece,
    PromptPiece,
    TextPiece,
)

PIECE_TOKENS = 64

TokenText = Callable[[int], str]


class PromptEcho:
    """Reads the scores of one prompt: implements `runner.text.prepared.PromptReader`."""

    def __init__(
        self, tokens: tuple[TokenId, ...], detokeniser: Detokeniser, token_text: TokenText
    ) -> None:
        self._tokens = tokens
        self._detokeniser = detokeniser
        self._token_text = token_text

    def read(self, scores: PromptScores) -> Iterator[PromptPiece]:
        """Yield the pieces for these scores; scores come in order, without gaps."""
        stop = scores.start + len(scores.logprobs)
        for start in range(scores.start, stop, PIECE_TOKENS):
            yield self._piece(scores, start, min(start + PIECE_TOKENS, stop))

    def _piece(self, scores: PromptScores, start: int, stop: int) -> PromptPiece:
        tokens = self._tokens[start:stop]
        text = "".join(map(self._detokeniser.add, tokens))
        if stop == len(self._tokens):
            text += self._detokeniser.flush()
        here = slice(start - scores.start, stop - scores.start)
        logprobs = tuple(
            logprob_of(token, logprob, top, self._token_text)
            for token, logprob, top in zip(
                tokens, scores.logprobs[here], scores.top[here], strict=True
            )
        )
        return PromptPiece(start, text, logprobs)


class EveryToken:
    """Reads one choice like `inner`, but reports the log-probability of every token, also of one
    without text."""

    def __init__(self, inner: ChoiceReader, token_text: TokenText) -> None:
        self._inner = inner
        self._token_text = token_text
        self._untold: list[TokenLogprob] = []
        self._ended = False

    def push(self, token: SampledToken) -> ChoiceOutput:
        """Return the pieces that this token completes; tokens after the end are ignored."""
        if self._ended:
            return ChoiceOutput()
        self._untold.append(logprob_of(token.token, token.logprob, token.top, self._token_text))
        output = self._inner.push(token)
        self._ended = output.ended
        return ChoiceOutput(self._with_logprobs(output.pieces), output.ended)

    def finish(self, reason: FinishReason) -> ChoiceFinish:
        """Return the text that was still held back, with the log-probabilities of tokens without
        text."""
        self._ended = True
        last = self._inner.finish(reason)
        pieces = self._with_logprobs(last.pieces)
        if self._untold:
            pieces = (*pieces, TextPiece("text", "", 0, self._take()))
        return replace(last, pieces=pieces)

    def _with_logprobs(self, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
        if not pieces or not isinstance(pieces[0], TextPiece):
            return pieces
        return (replace(pieces[0], logprobs=self._take()), *pieces[1:])

    def _take(self) -> tuple[TokenLogprob, ...]:
        untold, self._untold = tuple(self._untold), []
        return untold
