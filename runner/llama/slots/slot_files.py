"""Talks to the disk and to llama-server: prompts of slots in the node's files of KV (decision
0099).

A thread of its own does one job at a time. No row runs while llama-server reads or writes a slot.

llama-server ends if a file of a slot is cut off, and it does not notice wrong bits. So its file
is stored inside a run of `bus.models.kv`, which has checksums. They are checked before llama-server
gets the file. The jobs raise no errors: an error is reported as a result, and logged once.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from bus.models.gguf import ENGINE
from bus.models.kv import (
    UNFINISHED,
    BadRun,
    DiskRun,
    KvKey,
    KvLimits,
    StoredPart,
    TokenChain,
    check_run,
    evict,
    make_private,
    model_folder,
    read_header,
    run_of,
    run_path,
    write_run,
)
from runner.llama.slots.slots import SlotContent, common
from runner.llama.wire import LlamaClient, LlamaTrouble

HEADER_BYTES = 1 << 20
GROWN = 8
"""A prompt is written only if more than 1 / `GROWN` of its tokens are not on disk yet."""
MAGIC, BEFORE_BYTES = b"qsgg", 64
"""The beginning of llama-server's file of a slot: `ggsq` as a little-endian number. Some numbers
follow, which depend on the build, and then the tokens."""
PART = "part.0"
SIZE = struct.Struct("<Q")
FIRST_BYTES_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore: the content of the slot, None if it is unknown or unchanged."""

    content: SlotContent | None
    bytes_read: int = 0


def slots_key(files: Sequence[Path]) -> KvKey:
    """Return the key of the KV of these parts of a GGUF model; llama-server's version is added when
    it is known. Raises OSError."""
    content = hashlib.blake2b(digest_size=16)
    for file in files:
        seen = file.stat()
        marks = (file.name, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino)
        content.update(repr(marks).encode())
        with file.open("rb") as opened:
            content.update(opened.read(HEADER_BYTES))
    return KvKey(content.hexdigest(), ENGINE)


class SlotFiles:
    """The prompts on disk of one model. `say` logs a text for the operator."""

    def __init__(
        self, limits: KvLimits, model: str, key: KvKey, say: Callable[[str], None]
    ) -> None:
        self.least_tokens = limits.least_tokens
        self.folder = model_folder(limits.root, model) / key.folder
        self.bytes_per_s = FIRST_BYTES_PER_S
        self._limits = limits
        self._how = key.how
        self._say = say
        self._reported: set[str] = set()
        self._runs: dict[str, tuple[DiskRun, Path]] = {}
        self._client: LlamaClient
        self._jobs: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None
        self._closing = False

    def make_folder(self) -> None:
        """Make the folder, in which llama-server writes too. Raises OSError."""
        make_private(self.folder, self._limits.root)

    # --- the main thread -------------------------------------------------------------------

    def open(self, client: LlamaClient, done: Callable[[], None]) -> None:
        """Find the prompts on the disk that this llama-server wrote; calls `done`, in the
        thread."""
        self._client = client
        self._start(lambda: (self._look(), done()))

    def wants(self, content: SlotContent) -> bool:
        """Return whether to write a slot's prompt: not if it is short, or if nearly as much of it
        is on the disk."""
        length = len(content.tokens)
        if length < self.least_tokens:
            return False
        saved = max((shared for _, shared in self._matches(content)), default=0)
        return length - saved > length // GROWN

    def better(
        self, prompt: SlotContent, have: int, computing_s: Callable[[int], float]
    ) -> DiskRun | None:
        """Return the run that shares most tokens with a prompt, if reading it is faster than
        computing. The slot already has `have` tokens of the prompt. `computing_s` returns the
        expected seconds of computing that many tokens; 0 if the speed is not measured yet."""
        best = max(self._matches(prompt), key=lambda match: match[1], default=None)
        if best is None or best[1] - have < self.least_tokens:
            return None
        run, shared = best
        expected_s = computing_s(shared - have)
        reading_s = run.size_bytes / self.bytes_per_s
        return run if not expected_s or reading_s < expected_s else None

    def save(
        self,
        slots: Sequence[tuple[int, SlotContent]],
        saved: Callable[[], None],
        done: Callable[[int], None],
    ) -> None:
        """Write the prompts of free slots. The thread calls `saved` when llama-server has written
        them and may compute again, and `done` with the number of bytes when they are stored."""
        self._start(lambda: done(self._save_all(slots, saved)))

    def restore(self, number: int, run: DiskRun, done: Callable[[Restored], None]) -> None:
        """Read a run into a free slot. The thread calls `done` with the result."""
        self._start(lambda: done(self._restore(number, run)))

    def close(self, timeout_s: float) -> None:
        """Wait until the current job has ended, but not longer than this."""
        self._closing = True
        self._idle.wait(timeout_s)

    # --- the thread ------------------------------------------------------------------------

    def _start(self, job: Callable[[], object]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="llama-kv", daemon=True)
            self._thread.start()
        self._idle.clear()
        self._jobs.put(job)

    def _run(self) -> None:
        while True:
            self._jobs.get()()
            self._idle.set()

    def _look(self) -> None:
        try:
            build = self._client.build_name()
            entries = [Path(entry.path) for entry in os.scandir(self.folder)]
        except (OSError, LlamaTrouble) as error:
            self._say_once("read", f"prompts on disk were not read: {error}")
            return
        self._how = f"{self._how} {build} {os.uname().machine}"
        for entry in entries:
            name, origin = run_of(entry.name) or ("", "")
            if name and not origin:
                self._open(entry, name)

    def _save_all(self, slots: Sequence[tuple[int, SlotContent]], saved: Callable[[], None]) -> int:
        """Write prompts up to the first that fails; return the bytes written."""
        files: list[tuple[Path, SlotContent]] = []
        total = 0
        try:
            try:
                self.make_folder()
                for number, held in () if self._closing else slots:
                    files.append((self._scratch(number), held))
                    self._client.save_slot(number, files[-1][0].name)
            finally:
                saved()
            for scratch, held in files:
                total += 0 if self._closing else self._write(scratch, held).size_bytes
            self._reported.discard("write")
        except Exception as error:
            self._say_once("write", f"the KV of a prompt was not written to disk: {error}")
        finally:
            for scratch, _ in files:
                with contextlib.suppress(OSError):
                    scratch.unlink(missing_ok=True)
        return total

    def _write(self, scratch: Path, held: SlotContent) -> DiskRun:
        """Write the run of a slot's file. Raises OSError, BadRun."""
        with open(scratch, "r+b") as file:
            tokens, size = array("i", held.tokens), os.fstat(file.fileno()).st_size
            data = tokens.tobytes()
            if file.read(4) != MAGIC or data not in file.read(BEFORE_BYTES + len(data)):
                raise BadRun("llama-server saved another prompt than that of the slot")
            whole = size + SIZE.size
            row = -(-whole // len(tokens))
            file.seek(size)
            file.write(bytes(row * len(tokens) - whole) + SIZE.pack(size))
            file.flush()
            chain = TokenChain(tokens, seed=held.seed)
            name = chain.run_name(len(tokens))
            path = run_path(self.folder, name)
            evict(self._limits, room_bytes=row * len(tokens))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                view = memoryview(content)
                part = StoredPart("U8", (1, 1, len(tokens), row), view)
                run = DiskRun(name, held.seed, tokens)
                written = write_run(path, run, self._how, [part], lambda: True)
                view.release()
            scratch.unlink()
            evict(self._limits)
        run = DiskRun(name, held.seed, tokens, "", written)
        self._runs[name] = run, path
        return run

    def _restore(self, number: int, run: DiskRun) -> Restored:
        scratch, began_at = self._scratch(number), time.monotonic()
        _, path = self._runs.get(run.name, (run, run_path(self.folder, run.name)))
        try:
            check_run(path, run.name, self._how, lambda: not self._closing)
            _unpack(path, run.name, self._how, scratch)
            os.utime(path)
        except FileNotFoundError:
            self._runs.pop(run.name, None)
            return Restored(None)
        except Exception as error:
            self._drop(path, run.name, error)
            return Restored(None)
        try:
            count = self._client.restore_slot(number, scratch.name)
        except LlamaTrouble as error:
            self._say_once("read", f"the KV of a prompt could not be read from disk: {error}")
            return Restored(SlotContent())
        finally:
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)
        if count < len(run.tokens):
            return Restored(SlotContent())
        seconds = max(1e-6, time.monotonic() - began_at)
        self.bytes_per_s += 0.5 * (run.size_bytes / seconds - self.bytes_per_s)
        return Restored(SlotContent(run.tokens.tolist(), run.seed), run.size_bytes)

    # --- files -----------------------------------------------------------------------------

    def _matches(self, prompt: SlotContent) -> list[tuple[DiskRun, int]]:
        """Return the runs of the prompt's API key, each with the tokens that both begin with."""
        runs = [run for run, _ in [*self._runs.values()] if run.seed == prompt.seed]
        tokens = array("i", prompt.tokens) if runs else prompt.tokens
        return [(run, common(run.tokens, tokens)) for run in runs]

    def _open(self, path: Path, name: str) -> None:
        try:
            with path.open("rb") as file:
                self._runs[name] = read_header(file, name, self._how).run, path
        except FileNotFoundError:
            return
        except (OSError, BadRun) as error:
            self._drop(path, name, error)

    def _drop(self, path: Path, name: str, error: Exception) -> None:
        self._runs.pop(name, None)
        if isinstance(error, BadRun):
            self._say(f"deleted the KV of a prompt on disk, {path.name}: {error}")
            with contextlib.suppress(OSError):
                path.unlink()
        elif isinstance(error, OSError):
            self._say_once("read", f"the KV of a prompt could not be read from disk: {error}")

    def _scratch(self, number: int) -> Path:
        return self.folder / f"slot-{number}.{os.getpid()}{UNFINISHED}"

    def _say_once(self, what: str, text: str) -> None:
        if what not in self._reported:
            self._reported.add(what)
            self._say(text)


def _unpack(path: Path, name: str, how: str, target: Path) -> None:
    """Write llama-server's file in a run to `target`. Raises OSError, BadRun."""
    with path.open("rb") as file:
        header = read_header(file, name, how)
        _, _, start, stop = header.tensors[PART]
        file.seek(header.starts_at + stop - SIZE.size)
        (size,) = SIZE.unpack(file.read(SIZE.size))
        if not 0 < size <= stop - start - SIZE.size:
            raise BadRun("the size of llama-server's file is wrong")
        file.seek(header.starts_at + start)
        opened = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(opened, "wb") as copy:
            while size:
                piece = file.read(min(size, 4 << 20))
                if not piece:
                    raise BadRun("the file is truncated")
                copy.write(piece)
                size -= len(piece)
