"""Talks to llama-server and to the disk: decides which slot computes which row, and keeps the KV of
slots on disk.

A slot keeps the KV of its last row. Rows of different API keys never share it, in memory or on
disk.
"""

from runner.llama.slots.slot_disk import SlotDisk
from runner.llama.slots.slot_files import Restored, SlotFiles, slots_key
from runner.llama.slots.slots import NO_SLOT, SlotContent, Slots, TakenSlot

__all__ = [
    "NO_SLOT",
    "Restored",
    "SlotContent",
    "SlotDisk",
    "SlotFiles",
    "Slots",
    "TakenSlot",
    "slots_key",
]
