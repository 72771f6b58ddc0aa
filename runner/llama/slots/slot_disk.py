"""Talks to the files of slots: decides when prompts are written to disk, and read back (decision
0099).

Runs in the main thread. While llama-server reads or writes a slot, no row may start, because a row
could change the slot. Prompts are written only when no row runs: llama-server computes nothing
meanwhile. After that, rows may run while the written files are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from runner.llama.slots.slot_files import Restored, SlotFiles
from runner.llama.slots.slots import SlotContent, Slots
from runner.llama.wire import LlamaClient

LEAST_MEASURED = 256
"""The speed of computing is measured only with prompts of at least this many tokens."""
NEWEST = 0.5
"""The weight of the newest prompt in the running average of the speed."""


@dataclass(slots=True)
class SlotFigures:
    """Counts since the load: prompts of which a part was read from the disk (`hits`), the tokens of
    these parts, and the bytes read and written."""

    hits: int = 0
    hit_tokens: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


class SlotDisk:
    """The slots of one llama-server and their files. `is_busy`: no row may start now. `is_storing`:
    prompts that llama-server has written are being stored. `post` runs a callback in the main
    thread. `resume` is called there when rows may start again."""

    def __init__(
        self,
        slots: Slots,
        files: SlotFiles | None,
        post: Callable[[Callable[[], None]], None],
        resume: Callable[[], None],
    ) -> None:
        self.slots = slots
        self.is_busy = self.is_storing = False
        self.figures = SlotFigures()
        self._files = files
        self._post = post
        self._resume = resume
        self._token_s = 0.0
        self._tried: SlotContent | None = None
        """The prompt for which the last run was read. Its row does not wait for a second read."""

    def begin(self, client: LlamaClient) -> None:
        """Find the prompts on the disk, before the first row starts."""
        if self._files is not None:
            self.is_busy = True
            self._files.open(client, lambda: self._post(self._release))

    def waits(self, prompt: SlotContent) -> bool:
        """Return whether a row with this prompt must wait. It waits if llama-server reads or writes
        a slot, or if a run of KV for the prompt is worth reading; this call starts the read."""
        if self.is_busy or self._files is None or prompt is self._tried:
            return self.is_busy
        number, have = self.slots.best(prompt)
        run = self._files.better(prompt, have, lambda tokens: tokens * self._token_s)
        if run is None:
            return False
        self.is_busy, self._tried = True, prompt
        done = partial(self._end_read, number)
        self._files.restore(number, run, lambda news: self._post(partial(done, news)))
        return True

    def rest(self) -> None:
        """Write the prompts of slots that are not on disk; called when no row runs or waits."""
        if self._files is None or self.is_busy or self.is_storing:
            return
        slots = [each for each in self.slots.unsaved() if self._files.wants(each[1])]
        if slots:
            self.is_busy = self.is_storing = True
            saved = partial(self._post, self._release)
            self._files.save(slots, saved, lambda size: self._post(partial(self._stored, size)))

    def measured(self, tokens: int, seconds: float) -> None:
        """Record that llama-server computed `tokens` tokens of a prompt in `seconds`."""
        if tokens >= LEAST_MEASURED:
            pace = seconds / tokens
            self._token_s += (NEWEST if self._token_s else 1.0) * (pace - self._token_s)

    def close(self, timeout_s: float) -> None:
        """Wait until the file that is being written is complete, but at most `timeout_s`."""
        if self._files is not None:
            self._files.close(timeout_s)

    def _end_read(self, number: int, news: Restored) -> None:
        if news.content is not None:
            self.slots.hold(number, news.content)
        if news.bytes_read and news.content is not None:
            self.figures.hits += 1
            self.figures.hit_tokens += len(news.content.tokens)
            self.figures.read_bytes += news.bytes_read
        self._release()

    def _release(self) -> None:
        self.is_busy = False
        self._resume()

    def _stored(self, size: int) -> None:
        self.is_storing = False
        self.figures.written_bytes += size
        self._resume()
