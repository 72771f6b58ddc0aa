# pyright: reportUnknownMemberType=false
# (mlx leaves the arguments of `async_eval` and its kin untyped)
"""Talks to MLX: what the ranks of a group exchange, forming it included.

Two laws. All exchanges of a process happen on one stream, in the order in which its plans name
them, which is the same on every rank. And an exchange that takes nothing in (a `recv`) is given
to the device by itself, after all that must come before it, for the device may begin independent
parts of one graph in any order. A ring's first stage gives it only when what it brings is needed
(`settle`), and until then computes what does not depend on it. On a CPU it is given only once
bytes are there, for the device would spin until then (`doorbell`). After the first error of an
exchange there must not be another: it could wait for ever.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, cast

import mlx.core as mx

from bus.wire.messages.control import GroupSpec
from runner.group.group_config import (
    GREETING_BYTES,
    CannotForm,
    greeting,
    jaccl_devices,
    jaccl_environment,
    ring_environment,
    ring_hostfile,
    stranger,
)
from runner.group.lockstep import RankContext
from runner.mlx.ranks.ring_wait import Doorbell, ring_sockets

AGAIN_S = 0.25
PATIENCE_S = 0.5
"""After so long without bytes, the device waits for them by itself."""

_sockets: list[int] = []
"""The ring's, for the life of the process, like MLX's group itself."""


def form(group: GroupSpec, rank: int, deadline_s: float) -> None:
    """Join MLX's group; call it in the main thread, before anything else of MLX runs.

    It holds the interpreter until the group has formed, and only an interval timer, whose
    signals it takes in the main thread alone, can end it. CannotForm says why.
    """
    if not mx.distributed.is_available(group.backend):
        raise CannotForm(f"this machine's MLX has no {group.backend!r} backend")
    with tempfile.TemporaryDirectory(prefix="shoal-ring-") as folder:
        os.environ.update(_environment(group, rank, Path(folder)))
        previous = signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, deadline_s, AGAIN_S)
        try:
            found = mx.distributed.init(strict=True, backend=group.backend)
        except RuntimeError as error:
            raise CannotForm(
                f"rank {rank} could not join the {group.backend} in {deadline_s:.0f} s: {error}"
            ) from error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, previous)
    if group.backend == "ring":
        ports = {int(address.partition(":")[2]) for seat in group.ranks for address in seat.ring}
        _sockets[:] = ring_sockets(ports)
    if (found.rank(), found.size()) != (rank, len(group.ranks)):
        raise CannotForm(f"rank {rank} of {len(group.ranks)} became {found.rank()}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    """That the signal is caught is enough: a system call that waits comes back."""


def _environment(group: GroupSpec, rank: int, folder: Path) -> Mapping[str, str]:
    if group.backend == "ring":
        path = folder / "hosts.json"
        path.write_text(ring_hostfile(group))
        return ring_environment(rank, str(path))
    path = folder / "devices.json"
    path.write_text(jaccl_devices(group))
    return jaccl_environment(rank, str(path), group.coordinator)


class Company:
    """One rank among the others. Made in the engine's thread, after `form`."""

    def __init__(self, seat: RankContext) -> None:
        self.seat = seat
        self.group: Any = mx.distributed.init(strict=True, backend=seat.backend)
        self.leads = seat.rank == 0
        self.pipes = seat.sharding == "pipeline"
        self.is_first_stage = self.pipes and seat.rank == seat.size - 1
        self.hears = self.leads or not self.pipes or self.is_first_stage
        """Whether sampled tokens reach this rank."""
        buffered = self.pipes and seat.backend == "ring"
        self.lanes = seat.size if buffered else 1
        """Micro-batches in flight. They want a stage to be able to send tokens before the other
        end takes them: a ring's sockets buffer so much, of JACCL that is not known."""
        self.defers = self.is_first_stage and buffered
        self._due: deque[mx.array] = deque()
        on_cpu = not mx.metal.is_available()
        self.holds = self.leads and on_cpu
        """Whether what is started waits for `launch`."""
        self._held: list[tuple[mx.array | None, list[mx.array]]] = []
        self._bell = Doorbell(_sockets) if self.pipes and on_cpu and _sockets else None
        self._arriving: mx.array | None = None
        self._received: mx.array | None = None

    def greet(self) -> None:
        """The first exchange: every rank proves that it belongs here, or CannotForm."""
        seat = self.seat
        mine = mx.array(list(greeting(seat.secret, seat.generation, seat.rank)), mx.uint8)
        said: list[int] = mx.distributed.all_gather(mine, group=self.group).tolist()  # pyright: ignore[reportAssignmentType]
        greetings = [
            bytes(said[at : at + GREETING_BYTES]) for at in range(0, len(said), GREETING_BYTES)
        ]
        rank = stranger(seat.secret, seat.generation, greetings)
        if rank is not None:
            raise CannotForm(f"rank {rank} of the ring is not the group's")

    @property
    def arriving(self) -> list[mx.array]:
        """What arrives for what is being built; empty where nothing does."""
        return [] if self._arriving is None else [self._arriving]

    def arrive(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        """The hidden states of the stage before. What is computed from them, and nothing else, is
        to be given to the device (`give`, `start`) before more arrive."""
        self._arriving = mx.distributed.recv(shape, dtype, self.seat.rank + 1, group=self.group)
        return self._arriving

    def depart(self, hidden: mx.array) -> mx.array:
        """Hand hidden states to the next stage; what is returned must be evaluated."""
        return mx.distributed.send(hidden, self.seat.rank - 1, group=self.group)

    def owed(self, out: mx.array) -> list[mx.array]:
        """What of a forward's output must be evaluated although nothing is sampled from it."""
        return [out] if self.pipes and not self.leads else []

    def least(self, mine: int) -> int:
        """The least of what all ranks say, which they do between the same two steps. It waits for
        all that was given to the device."""
        self.launch()
        self.settle(None)
        least: list[int] = mx.distributed.all_min(mx.array([mine]), group=self.group).tolist()  # pyright: ignore[reportAssignmentType]
        return least[0]

    def share(self, tokens: mx.array) -> mx.array:
        """The lead's: (rows,) sampled tokens, on their way to whoever needs them."""
        if self.pipes:
            return mx.distributed.send(tokens, self.seat.size - 1, group=self.group)
        return mx.distributed.all_sum(tokens, group=self.group)

    def start(self, arrays: list[mx.array]) -> None:
        """Give a part of a step to the device, or hold it until `launch`.

        Without Metal the device's queue is short, and whoever gives it a step waits until most
        of that step is computed. The lead would have the followers wait for their next plan just
        as long: it tells it first, and starts the step before it then.
        """
        if not self.holds:
            self.give(arrays)
            return
        arriving, self._arriving = self._arriving, None
        self._held.append((arriving, arrays))

    def give(self, arrays: list[mx.array]) -> None:
        """Give the device what may depend on what arrives, once that is arriving, and before it
        whatever is held."""
        arriving, self._arriving = self._arriving, None
        self.launch()
        self._give(arriving, arrays)

    def launch(self) -> None:
        """Give the device what is held, in order. It must come before anything else does."""
        held, self._held = self._held, []
        for arriving, arrays in held:
            self._give(arriving, arrays)

    def settle(self, heard: mx.array | None) -> None:
        """Have the device receive what is due up to `heard`, in order (None: all of it)."""
        while self._due and (heard is None or any(one is heard for one in self._due)):
            heard_now = self._due.popleft()
            self._give(heard_now, [heard_now])

    def hear(self, count: int, out: mx.array) -> mx.array:
        """A follower's: `count` tokens that the lead samples from the forward that ended in
        `out`. Where none are needed they are zeros, there when `out` is."""
        none = mx.zeros((count,), mx.int32)
        if self.is_first_stage:
            mx.async_eval(out)
            heard = mx.distributed.recv((count,), mx.int32, 0, group=self.group)
            if self.defers:
                self._due.append(heard)
            return heard
        after = cast(mx.array, mx.depends([none], [out])[0])
        return after if self.pipes else mx.distributed.all_sum(after, group=self.group)

    def _give(self, arriving: mx.array | None, arrays: list[mx.array]) -> None:
        if arriving is not None and self._bell is not None:
            if self._received is not None:
                mx.eval(self._received)
            self._bell.wait(PATIENCE_S)
            self._received = arriving
        mx.async_eval(arrays)
