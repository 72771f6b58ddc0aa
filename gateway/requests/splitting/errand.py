"""One request of the gateway itself to a runner: what a prompt costs, or to compute it for another
node. It belongs to no client, so nothing of it is billed or shown."""

from __future__ import annotations

from collections.abc import Callable

from bus.wire.errors import Refusal
from bus.wire.messages.requests import GenerationRequest, PromptCost, PromptQuestion
from bus.wire.messages.tokens import AnswerSoFar, Entry, Failed, Finished, Traced
from bus.wire.messages.traces import RankTraced
from gateway.runners.resuming import Loss, Resuming


def cost_question(request: GenerationRequest) -> GenerationRequest:
    """Return the question what a request's prompt would cost."""
    return _asking(request, PromptQuestion(wants="cost"))


def kv_question(request: GenerationRequest) -> GenerationRequest:
    """Return the request to compute a request's prompt and write its KV. Everything that may change
    the prompt stays as it is."""
    return _asking(request, PromptQuestion(wants="kv"))


def _asking(request: GenerationRequest, question: PromptQuestion) -> GenerationRequest:
    plain = {"top_logprobs": None, "prediction": None, "speculate": None, "trace": None}
    update = {"question": question, "n": 1, "max_tokens": 1, "min_tokens": None, "stop": ()}
    return request.model_copy(update={**plain, **update})


class Errand:
    """A `RequestObserver`: calls `done` once, with the cost or with the reason of a failure."""

    def __init__(self, done: Callable[[PromptCost | str], None]) -> None:
        self.resuming = Resuming()
        self._done: Callable[[PromptCost | str], None] | None = done

    def accepted(self, prompt_tokens: int, unheeded: tuple[str, ...], now: float) -> None:
        """The runner has accepted it."""

    def traced(self, trace: Traced | RankTraced, now: float, /) -> None:
        """It is not traced."""

    def lost(self, loss: Loss, now: float) -> None:
        self._end(loss.message)

    def refused(self, refusal: Refusal) -> None:
        self._end(refusal.message)

    def displaced(self, so_far: AnswerSoFar | None, now: float) -> None:
        self._end("a more urgent request took its place")

    def lost_unaccepted(self) -> None:
        self._end("the runner does not answer")

    def arrived(self, entries: list[Entry], now: float) -> None:
        last = entries[-1]
        if isinstance(last, Failed):
            self._end(last.message)
        elif isinstance(last, Finished):
            self._end(_cost_of(last))

    def _end(self, result: PromptCost | str) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(result)


def _cost_of(finished: Finished) -> PromptCost | str:
    text = "" if finished.prompt is None else finished.prompt.text
    try:
        return PromptCost.model_validate_json(text)
    except ValueError:
        return "the runner did not say what the prompt costs"
