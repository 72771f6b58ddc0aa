"""Which slot of llama-server computes which row.

Pure. A slot keeps the KV of its last row. A new row gets the free slot that shares the longest
beginning with its prompt, so that this part is not computed again. Rows share KV only within one
API key and adapter: a row that gets the slot of another key must not use the KV in it (`keeps`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

UNKNOWN = b"\0unknown"
"""The seed of a slot whose content is unknown. No API key has it."""


@dataclass(frozen=True, slots=True)
class SlotContent:
    """The first tokens that a slot has, and the hash seed of their API key (`kept_apart`)."""

    tokens: Sequence[int] = ()
    seed: bytes = UNKNOWN


@dataclass(slots=True)
class _Slot:
    """`held` is the content after the last row. `used` orders slots by their last use. `is_saved`:
    the content was written to disk, or writing it was tried."""

    number: int
    held: SlotContent
    is_taken: bool = False
    used: int = 0
    is_saved: bool = False


@dataclass(frozen=True, slots=True)
class TakenSlot:
    """The slot of a row. `keeps`: the row may use the KV that is already in the slot."""

    number: int
    keeps: bool


NO_SLOT = TakenSlot(-1, keeps=False)
"""The slot of a row that has not begun."""


@dataclass(slots=True)
class Slots:
    """The `count` slots of one llama-server, each for one row at a time."""

    count: int
    _slots: list[_Slot] = field(init=False)
    _uses: int = 0

    def __post_init__(self) -> None:
        self._slots = [_Slot(number, SlotContent()) for number in range(self.count)]

    def take(self, prompt: SlotContent) -> TakenSlot:
        """Return the best free slot for a row with this prompt; it is taken until `free`."""
        chosen = self._best(prompt)
        keeps = chosen.held.seed == prompt.seed
        self._uses += 1
        chosen.held, chosen.is_saved = prompt, False
        chosen.is_taken, chosen.used = True, self._uses
        return TakenSlot(chosen.number, keeps)

    def best(self, prompt: SlotContent) -> tuple[int, int]:
        """Return the slot that `take` would return, and how many tokens of the prompt it has."""
        chosen = self._best(prompt)
        return chosen.number, _shared(chosen.held, prompt)

    def hold(self, number: int, held: SlotContent) -> None:
        """Record the content of a free slot that was read from disk."""
        slot = self._slots[number]
        slot.held, slot.is_saved = held, True

    def unsaved(self) -> list[tuple[int, SlotContent]]:
        """Return the free slots that were not saved since their last row, and their content. They
        count as saved from now on."""
        slots = [slot for slot in self._slots if not slot.is_taken and not slot.is_saved]
        for slot in slots:
            slot.is_saved = True
        return [(slot.number, slot.held) for slot in slots]

    def _best(self, prompt: SlotContent) -> _Slot:
        free = (slot for slot in self._slots if not slot.is_taken)
        return max(free, key=lambda slot: (_shared(slot.held, prompt), -slot.used))

    def free(self, taken: TakenSlot) -> None:
        """Free a slot; it keeps its KV."""
        self._slots[taken.number].is_taken = False


def _shared(held: SlotContent, prompt: SlotContent) -> int:
    return common(held.tokens, prompt.tokens) if held.seed == prompt.seed else 0


def common(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the common prefix of two token lists."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
