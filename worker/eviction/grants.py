"""The protocol by which nodes with copies of one model agree which node may delete its copy.

Pure: time arrives as `now`. A node that wants to delete its copy asks the other nodes with a copy,
one by one. It deletes after the first grant, within `WINDOW_S` of asking. A node grants only while
it has a complete copy and does not want to delete that copy itself. If two nodes ask each other,
the smaller id gives up and grants.

So the last copy is never deleted. For the last deletion on each node, consider the moment of its
grant. The granting node then had a copy and no request of its own, so its own request and grant
came later. From node to node these moments increase, so no node occurs twice, and one of them has
deleted nothing. Lost, late, repeated or reordered messages do not matter, nor does a restart,
because then the node has no request. The window limits how old a grant can be when it is used, in
case the granting node was shut down since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.weights import KeepAnswered, KeepAsked

WINDOW_S = 6.0
REPEAT_S = 0.5


@dataclass(frozen=True, slots=True)
class Granted:
    """The promise of another node: `node` keeps its copy, so this node may delete its own before
    `until_at`."""

    node: NodeId
    until_at: float


@dataclass(frozen=True, slots=True)
class NotGranted:
    """No node promised to keep its copy; the text says why."""

    why: str


@dataclass(frozen=True, slots=True)
class Content:
    """Digests of a copy of a model. `weights` is computed from the hashes that were recorded when
    the weights arrived; empty: unknown. `card` is the digest of the copy's `card.toml`, which was
    written at `card_at_s`; empty: no `card.toml`."""

    weights: str = ""
    card: str = ""
    card_at_s: float = 0.0


NO_CONTENT = Content()


@dataclass(slots=True)
class _Wish:
    """An open request to delete this node's copy of a model. `node` is asked now to keep its own
    copy, by the question `question`; the nodes in `left` are asked after it. `asked_at` is when
    `node` was asked first, `said_at` when the question was last sent. `whys` say which nodes
    refused or did not answer; `verdict` is the result, None while nodes are asked."""

    model: ModelId
    digest: str
    content: Content
    left: list[NodeId]
    node: NodeId | None = None
    question: str = ""
    asked_at: float = 0.0
    said_at: float = 0.0
    whys: list[str] = field(default_factory=list[str])
    verdict: Granted | NotGranted | None = None


class Grants:
    """The promises of one node to keep its copies, and the one deletion that it currently requests.
    `new_question` returns a question id that is unique over nodes and restarts."""

    def __init__(self, me: NodeId, new_question: Callable[[], str]) -> None:
        self._me = me
        self._new_question = new_question
        self._wish: _Wish | None = None

    # --- to delete ---

    def wish(
        self,
        model: ModelId,
        digest: str,
        keepers: Sequence[NodeId],
        now: float,
        *,
        content: Content = NO_CONTENT,
    ) -> None:
        """Request to delete this node's copy of a model. The nodes in `keepers` have other copies
        and are asked in that order. Replaces an earlier request."""
        self._wish = wish = _Wish(model, digest, content, list(keepers))
        self._next(wish, now)

    def due(self, now: float) -> tuple[NodeId, KeepAsked] | None:
        """Return the question to send now, and the node to ask; None if no question is due."""
        wish = self._wish
        if wish is None or wish.verdict is not None:
            return None
        if now - wish.asked_at >= WINDOW_S:
            wish.whys.append(f"{wish.node} did not answer")
            self._next(wish, now)
        if wish.node is None or now - wish.said_at < REPEAT_S:
            return None
        wish.said_at = now
        question = KeepAsked(
            question=wish.question,
            asker=self._me,
            model=wish.model,
            digest=wish.digest,
            content=wish.content.weights,
            card=wish.content.card,
            card_at_s=wish.content.card_at_s,
        )
        return wish.node, question

    def answered(self, answer: KeepAnswered, now: float) -> None:
        """Process an answer. An answer that is late or belongs to another question is ignored."""
        wish = self._wish
        if wish is None or wish.verdict is not None:
            return
        if (answer.question, answer.node) != (wish.question, wish.node):
            return
        until_at = wish.asked_at + WINDOW_S
        if answer.keeps and now < until_at:
            wish.verdict = Granted(answer.node, until_at)
        elif not answer.keeps:
            wish.whys.append(f"{answer.node} refused: {answer.why}")
            self._next(wish, now)

    @property
    def verdict(self) -> Granted | NotGranted | None:
        """Return the result of the request; None if the request is still open or does not exist."""
        return None if self._wish is None else self._wish.verdict

    def forget(self) -> None:
        """Forget the request, because the copy was deleted or will be kept."""
        self._wish = None

    # --- to keep ---

    def answer(self, question: KeepAsked, lacks: str) -> KeepAnswered:
        """Return the answer to a node that wants to delete its copy of a model. `lacks` is the
        reason why this node cannot promise to keep its own copy; empty: the copy is complete and on
        the disk."""
        why, wish = lacks, self._wish
        if not why and wish is not None and wish.model == question.model:
            if isinstance(wish.verdict, Granted):
                why = "the node is deleting its own files"
            elif wish.verdict is None and self._me > question.asker:
                why = "the node wants to delete its own files and has the greater id"
            elif wish.verdict is None:
                wish.verdict = NotGranted(
                    f"this node promised {question.asker} to keep its copy, so that "
                    f"{question.asker} can delete its own"
                )
        return KeepAnswered(question=question.question, node=self._me, keeps=not why, why=why)

    def _next(self, wish: _Wish, now: float) -> None:
        """Choose the next node to ask; if none is left, the deletion is not granted."""
        if not wish.left:
            wish.node = None
            wish.verdict = NotGranted("; ".join(wish.whys)[:400] or "no other node has it")
            return
        wish.node, wish.question = wish.left.pop(0), self._new_question()
        wish.asked_at, wish.said_at = now, now - REPEAT_S
