"""KV of prompts that moves between nodes: questions of runners, and offers of other nodes' workers.

Pure. A runner asks its worker (`SeekRun`). The worker asks other nodes' stores (`AskRun`), chooses
an offer, and fetches the file with the same `AskPiece`s as weights. No message has tokens, only
hashes of them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bus.wire.ids import ModelId, NodeId
from bus.wire.messages.wire import Message

HASH_LENGTH = 64
MOST_HASH_BYTES = 32 << 10
MOST_NAMES = 256


class SeekRun(Message):
    """A runner asks its worker whether another node has KV for the beginning of a prompt. `prompt`
    names the prompt. It has `tokens` tokens; the runner already has KV of the first `have`.
    `folder` and `how` are the runner's key (`bus.models.kv.KvKey`). `hashes`: 8 bytes for each
    block of the prompt. `saves_s`: the expected seconds of computing from `have` to the end of each
    of several equal steps; the last step ends with the prompt. `read_bytes_per_s`: the speed of the
    runner's disk."""

    kind: Literal["seek_run"] = "seek_run"
    model: ModelId
    prompt: str = Field(max_length=64)
    adapter: str = Field(default="", max_length=200)
    folder: str = Field(max_length=HASH_LENGTH)
    how: str = Field(max_length=HASH_LENGTH)
    tokens: int = Field(ge=1)
    have: int = Field(ge=0)
    hashes: bytes = Field(max_length=MOST_HASH_BYTES)
    saves_s: tuple[float, ...] = Field(min_length=1, max_length=64)
    read_bytes_per_s: float = Field(gt=0)


SoughtWhat = Literal["coming", "moved", "none", "dearer", "failed"]


class RunSought(Message):
    """The worker's answer to `SeekRun`. `coming`: a copy has begun; the row may wait for `wait_s`.
    `moved`: the file is on this node's disk and its sums are right. `none`: no node has a longer
    run. `dearer`: computing is expected to be faster. `failed`: the copy failed. Only `coming` is
    followed by another answer."""

    kind: Literal["run_sought"] = "run_sought"
    prompt: str = Field(max_length=64)
    what: SoughtWhat
    wait_s: float = Field(default=0.0, ge=0)
    size_bytes: int = Field(default=0, ge=0)


class AskRun(Message):
    """Ask another node's store for the run of KV that shares most blocks with a prompt. `how`: the
    way of computing. `adapter`: the row's adapter."""

    kind: Literal["ask_run"] = "ask_run"
    model: ModelId
    adapter: str = Field(default="", max_length=200)
    how: str = Field(max_length=HASH_LENGTH)
    hashes: bytes = Field(max_length=MOST_HASH_BYTES)


class RunOffered(Message):
    """The answer to `AskRun`. `blocks` of the prompt are in the run `name`; 0: there is no such
    run. `content`: the hash of the model's files. The run's file of `size_bytes` is read with
    `AskPiece`s with this `digest` and the path `name`. `origin`: the node that computed it. The
    store sends at most `limit_bytes_per_s` (0: no limit)."""

    kind: Literal["run_offered"] = "run_offered"
    blocks: int = Field(default=0, ge=0)
    content: str = Field(default="", max_length=HASH_LENGTH)
    name: str = Field(default="", max_length=64)
    size_bytes: int = Field(default=0, ge=0)
    digest: str = Field(default="", max_length=HASH_LENGTH)
    origin: NodeId = NodeId("")
    limit_bytes_per_s: float = Field(default=0.0, ge=0)


class AskRunsGone(Message):
    """Ask the node that computed some runs which of them it no longer has. The asking node deletes
    its copies of those."""

    kind: Literal["ask_runs_gone"] = "ask_runs_gone"
    names: tuple[str, ...] = Field(max_length=MOST_NAMES)


class RunsGone(Message):
    """The answer to `AskRunsGone`: the names of the runs that are no longer on the disk."""

    kind: Literal["runs_gone"] = "runs_gone"
    names: tuple[str, ...] = Field(max_length=MOST_NAMES)
