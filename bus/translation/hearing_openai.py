"""Translates the chunks of OpenAI's API into entries: those of chats, and of raw completions.

Pure. Only an engine of the cluster is asked for raw completions and log-probabilities. The
log-probabilities of a chunk stay with its last text; those of a tool call are left out, because a
part of a tool call has no place for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bus.translation.hearing import AnswerEntries, object_of, place_of, plain_text
from bus.translation.scores import ids_of, scores_of
from bus.translation.target import Target
from bus.translation.told import objects_in
from bus.wire.ids import RequestId
from bus.wire.messages.requests import Usage
from bus.wire.messages.tokens import Channel, Entry


class OpenAIHearing:
    """Translates the chunks of a completion."""

    def __init__(self, target: Target, request_id: RequestId, choices: int) -> None:
        self._is_engine = target.completes
        self._entries = AnswerEntries(target, request_id, choices)

    def take(self, event: Mapping[str, Any]) -> list[Entry]:
        """Return the entries of a chunk. Raises BrokenStream and Filtered."""
        return [entry for choice in objects_in(event.get("choices")) for entry in self._of(choice)]

    def end(self, usage: Usage) -> list[Entry]:
        """Return the remaining ends of choices and the last entry, `Finished`. Raises
        BrokenStream."""
        return list(self._entries.last(usage))

    def _of(self, choice: dict[str, Any]) -> Iterator[Entry]:
        index, delta = choice.get("index"), object_of(choice.get("delta"))
        number = index if isinstance(index, int) else 0
        texts: list[tuple[Channel, object]] = [
            ("reasoning", delta.get("reasoning_content") or delta.get("reasoning")),
            ("text", delta.get("content")),
            ("text", delta.get("refusal")),
        ]
        if self._is_engine:
            texts.append(("text", choice.get("text")))
            yield from self._scored(number, choice, texts)
        else:
            for channel, text in texts:
                yield from self._entries.add_text(number, channel, text)
        for call in objects_in(delta.get("tool_calls")):
            yield from self._part_of_call(number, call)
        reason, stop = choice.get("finish_reason"), choice.get("stop_reason")
        if isinstance(reason, str):
            is_stop = self._is_engine and isinstance(stop, str)
            sequence = plain_text(stop) if is_stop else None
            yield from self._entries.end_choice(number, reason, sequence)

    def _scored(
        self, number: int, choice: dict[str, Any], texts: list[tuple[Channel, object]]
    ) -> Iterator[Entry]:
        """Yield the texts of an engine's chunk. Tokens without text, such as a part of a character,
        keep their log-probabilities in an entry of their own, unless they belong to a tool call."""
        ids, state = ids_of(choice), self._entries.choice(number)
        scores = scores_of(choice, ids)
        pieces: list[tuple[Channel, str]] = [
            (channel, piece) for channel, text in texts if (piece := plain_text(text))
        ]
        in_call = state.open or bool(object_of(choice.get("delta")).get("tool_calls"))
        if not pieces and scores and not in_call:
            pieces = [(state.channel, "")]
        for place, (channel, piece) in enumerate(pieces, 1):
            is_last = place == len(pieces)
            tokens = len(ids) or len(scores) or 1
            yield from self._entries.add_scored(
                number, channel, piece, scores if is_last else (), tokens if is_last else 0
            )

    def _part_of_call(self, number: int, call: dict[str, Any]) -> Iterator[Entry]:
        """Yield the entries for a part of a tool call. Some servers give all calls the same index,
        and other servers give calls no index. So a part with another id begins another call."""
        state, function = self._entries.choice(number), object_of(call.get("function"))
        call_id, index = place_of(call.get("id")), place_of(call.get("index"))
        is_other = bool(call_id) and plain_text(str(call_id)) != state.call_id
        if not state.open or is_other or (index is not None and index != state.place):
            yield from self._entries.begin_call(number, index, call_id, function.get("name"))
        yield from self._entries.add_arguments(number, function.get("arguments"))
