"""Which slot of llama-server computes which row.

Pure. A slot keeps the KV of its last row. A new row gets the free slot whose prompt begins like its
own, so that this part is not computed again. Only rows of one API key share: the slot of another
key is told to forget first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bus.wire.ids import TokenId


@dataclass(slots=True)
class _Slot:
    """`prompt` and `key_id` are those of the last row; `used` orders slots by their last use."""

    number: int
    prompt: Sequence[TokenId] = ()
    key_id: str | None = None
    is_taken: bool = False
    used: int = 0


@dataclass(frozen=True, slots=True)
class TakenSlot:
    """`keeps`: the row may use the KV that the slot has."""

    number: int
    keeps: bool


NO_SLOT = TakenSlot(-1, keeps=False)
"""The slot of a row that has not begun."""


@dataclass(slots=True)
class Slots:
    """The `count` slots of one llama-server. At most so many rows run at a time."""

    count: int
    _slots: list[_Slot] = field(init=False)
    _uses: int = 0

    def __post_init__(self) -> None:
        self._slots = [_Slot(number) for number in range(self.count)]

    def take(self, prompt: Sequence[TokenId], key_id: str | None) -> TakenSlot:
        """Return the best free slot for a row with this prompt; it is taken until `free`."""

        def worth(slot: _Slot) -> tuple[int, int]:
            shared = common(slot.prompt, prompt) if slot.key_id == key_id else 0
            return shared, -slot.used

        chosen = max((slot for slot in self._slots if not slot.is_taken), key=worth)
        keeps = chosen.key_id == key_id
        self._uses += 1
        chosen.prompt, chosen.key_id = prompt, key_id
        chosen.is_taken, chosen.used = True, self._uses
        return TakenSlot(chosen.number, keeps)

    def free(self, taken: TakenSlot) -> None:
        """Free a slot; it keeps its KV."""
        self._slots[taken.number].is_taken = False


def common(left: Sequence[TokenId], right: Sequence[TokenId]) -> int:
    """Return the length of the common prefix of two token lists."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
