"""How nodes that have copies of one model agree which of them may delete its own.

Pure: time arrives as `now`. A node that wants to delete its copy asks one after the other of those
that have the model, and deletes once one has granted it, within `window_s` of asking. A node grants
only while it has a whole copy and wants not to delete that itself; of two that ask each other the
one with the lesser id gives up, and grants.

So the last copy never goes. Of the last deletion on each node, take when it was granted: the node
that granted it had a copy and no wish, so its own was wished, and granted, later. From node to node
these moments only rise, and so no node is met twice: one has deleted nothing. It does not matter
what is lost, late, repeated or reordered, nor what a node forgets when it starts anew, for then it
has no wish. The window bounds how old the word of a node may be that is shut down meanwhile.
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
    """`node` keeps its copy; ours may be deleted before `until_at`."""

    node: NodeId
    until_at: float


@dataclass(frozen=True, slots=True)
class NotGranted:
    """No node has granted it, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class Content:
    """What a copy is made of beside its shape: digests of the hashes that its `weights` came with,
    and of its `card.toml`, written at `card_at_s`. Empty: not known, or none."""

    weights: str = ""
    card: str = ""
    card_at_s: float = 0.0


NO_CONTENT = Content()


@dataclass(slots=True)
class _Wish:
    """The copy that this node wants to delete. `node` is asked now, `left` are next."""

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
    """What one node grants, and the one deletion that it asks for. `new_question` names a question
    that no other node and no other start of this one has asked."""

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
        """Want to delete the own copy of a model, of which `keepers` have others; they are asked in
        that order. What was wanted before is forgotten."""
        self._wish = wish = _Wish(model, digest, content, list(keepers))
        self._next(wish, now)

    def due(self, now: float) -> tuple[NodeId, KeepAsked] | None:
        """Return what is to be asked now, and which node."""
        wish = self._wish
        if wish is None or wish.verdict is not None:
            return None
        if now - wish.asked_at >= WINDOW_S:
            wish.whys.append(f"{wish.node} did not answer")
            self._next(wish, now)
        if wish.node is None or now - wish.said_at < REPEAT_S:
            return None
        wish.said_at = now
        asked = KeepAsked(
            question=wish.question,
            asker=self._me,
            model=wish.model,
            digest=wish.digest,
            content=wish.content.weights,
            card=wish.content.card,
            card_at_s=wish.content.card_at_s,
        )
        return wish.node, asked

    def answered(self, answer: KeepAnswered, now: float) -> None:
        """Take in an answer; one that comes late, or to another question, changes nothing."""
        wish = self._wish
        if wish is None or wish.verdict is not None:
            return
        if (answer.question, answer.node) != (wish.question, wish.node):
            return
        until_at = wish.asked_at + WINDOW_S
        if answer.keeps and now < until_at:
            wish.verdict = Granted(answer.node, until_at)
        elif not answer.keeps:
            wish.whys.append(f"{answer.node} does not grant it: {answer.why}")
            self._next(wish, now)

    @property
    def verdict(self) -> Granted | NotGranted | None:
        """Return what came of the wish; None while it is not known, or nothing is wanted."""
        return None if self._wish is None else self._wish.verdict

    def forget(self) -> None:
        """Take in that the copy is gone, or stays: nothing is wanted any more."""
        self._wish = None

    # --- to keep ---

    def asked(self, asked: KeepAsked, lacks: str) -> KeepAnswered:
        """Return the answer to who wants to delete its copy. `lacks` says why this node's own copy
        is none that could be kept; empty: it is whole, on the disk."""
        why, wish = lacks, self._wish
        if not why and wish is not None and wish.model == asked.model:
            if isinstance(wish.verdict, Granted):
                why = "it is deleting its own copy"
            elif wish.verdict is None and self._me > asked.asker:
                why = "it wants to delete its own copy, and has the greater id"
            elif wish.verdict is None:
                wish.verdict = NotGranted(
                    f"{asked.asker} wants to delete its own, and has asked here"
                )
        return KeepAnswered(question=asked.question, node=self._me, keeps=not why, why=why)

    def _next(self, wish: _Wish, now: float) -> None:
        """Turn to the next node that has it."""
        if not wish.left:
            wish.node = None
            wish.verdict = NotGranted("; ".join(wish.whys)[:400] or "no other node has it")
            return
        wish.node, wish.question = wish.left.pop(0), self._new_question()
        wish.asked_at, wish.said_at = now, now - REPEAT_S
