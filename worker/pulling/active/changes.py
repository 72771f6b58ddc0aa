"""Talks to the disk in a thread of its own: cancels, pauses and resumes pulls for users.

The user gets the answer once the change is in the record on disk, and after `cancel` once the
partial files are deleted. A paused or failed pull keeps its files, and `resume` continues it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from bus.wire.messages.gateways import ChangePull, PullChanged
from worker.pulling.active.board import PullBoard
from worker.pulling.active.pull import Pull, background_pull
from worker.pulling.fetching.partial import delete_partial

if TYPE_CHECKING:
    from bus.client import BusClient
    from worker.transfer.downloads import Downloads

Answer = Callable[[PullChanged], object]
NO_PULL = "this node has no such pull"
COMPLETE = "all files have arrived; delete the model with `shoal rm`"


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A user who waits until the change is on the disk, and after `cancel` until the partial files
    are deleted."""

    question: ChangePull
    answer: Answer
    deletion: Future[int] | None


class PullChanges:
    """Changes the pulls on `board`. `models` is the folder of models. The worker calls `tick`."""

    def __init__(
        self, client: BusClient, board: PullBoard, downloads: Downloads, models: Path
    ) -> None:
        self._client = client
        self._board = board
        self._downloads = downloads
        self._models = models
        self._thread = ThreadPoolExecutor(1, "pull-delete")
        self._waiting: list[_Waiting] = []

    def ask(self, question: ChangePull, answer: Answer) -> None:
        """Change the pulls of a model; the user gets one answer."""
        pulls = [pull for pull in self._board.pulls if pull.model == question.model]
        running = [pull for pull in pulls if pull.ended_at is None]
        ended = [pull for pull in pulls if pull.ended_at is not None and pull.background]
        deletion: Future[int] | None = None
        match question.change:
            case "cancel":
                why = _why_not_cancelled(pulls)
                if not why:
                    deletion = self._cancel(question, [*running, *ended])
            case "pause":
                why = self._pause(running, ended)
            case "resume":
                why = self._resume(running, ended)
            case _:
                assert_never(question.change)
        if why:
            answer(PullChanged(model=question.model, why=why))
        else:
            self._waiting.append(_Waiting(question, answer, deletion))

    def tick(self) -> None:
        """Answer the users whose changes are on the disk. Must be called after the pulls are
        published."""
        if not self._board.is_recorded:
            return
        for waiting in list(self._waiting):
            if waiting.deletion is None or waiting.deletion.done():
                self._waiting.remove(waiting)
                waiting.answer(_changed(waiting))

    def close(self) -> None:
        """Finish the running deletion and start none."""
        self._thread.shutdown(cancel_futures=True)

    def _cancel(self, question: ChangePull, pulls: list[Pull]) -> Future[int]:
        text = f"the pull of {question.model} was cancelled"
        for pull in pulls:
            pull.stop(self._downloads)
            pull.background = False
            self._board.fail(pull, "cancelled", text)
        return self._thread.submit(delete_partial, self._models, question.model)

    def _pause(self, running: list[Pull], ended: list[Pull]) -> str:
        """Pause the running pulls. If none runs, return why nothing was paused. A repeated call
        changes nothing."""
        for pull in running:
            pull.stop(self._downloads)
            pull.background = True
            text = f"the pull of {pull.model} was paused; `shoal pulls resume` continues it"
            self._board.fail(pull, "paused", text)
        if running or any(pull.state.reason == "paused" for pull in ended):
            return ""
        return "this pull does not run" if ended else NO_PULL

    def _resume(self, running: list[Pull], ended: list[Pull]) -> str:
        """Continue the last ended pull; return why that cannot be done. A repeated call changes
        nothing."""
        for pull in running:
            pull.goes = pull.background = True
            self._board.supersede(pull)
        if running:
            return ""
        if not ended:
            return NO_PULL
        last = ended[-1]
        now = self._client.reactor.now()
        pull = background_pull(last.model, last.revision, last.layers, now, "")
        self._board.pulls.append(pull)
        self._board.supersede(pull)
        self._client.log.info("a user resumed a pull", model=pull.model)
        return ""


def _why_not_cancelled(pulls: list[Pull]) -> str:
    """Return why no pull of the list can be cancelled; empty if one can, or was a moment ago."""
    if any(pull.came and pull.ended_at is None for pull in pulls):
        return COMPLETE
    can = any(
        pull.ended_at is None or pull.background or pull.state.reason == "cancelled"
        for pull in pulls
    )
    return "" if can else NO_PULL


def _changed(waiting: _Waiting) -> PullChanged:
    """Return the answer for a change that was made."""
    model, deletion = waiting.question.model, waiting.deletion
    if deletion is None:
        return PullChanged(model=model)
    if (error := deletion.exception()) is not None:
        why = f"the pull ended, but its partial files stay: {error}"[:400]
        return PullChanged(model=model, why=why)
    return PullChanged(model=model, deleted_bytes=deletion.result())
