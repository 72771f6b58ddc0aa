"""Talks the runner's side of the data plane on a real ROUTER, with text made on the spot.

A process of its own (`python -m tests.harness.synthetic_runner SOCKET INSTANCE GENERATION
PROTOCOL`, the highest version that it speaks), so that it can be stopped and killed. What a request
gets is written in its last message, as words `name=value`: tokens=N, every_ms=N (0: as fast as
credit allows), refuse=REASON, fail=REASON, silent=N (N tokens, then nothing), mute=1 (not even an
answer), fits=N (refuse a conversation of more characters), places=N (find the queue full while so
many are open), skip=N (lose that entry), displace=N (give it back so often), back_twice=1 (say so
twice), back_late=1 (give it back when it is told to stop it), stays=1 (not give it back when that
is asked), calls=1 (end with a tool call), unheeded=1 (strict tools have no effect), unsaid=N (N
tokens more are used than are said), untold=1 (it tells nothing of a trace), ranks=N (so many ranks
tell of it, after its end), quiet=N (but for that one), keeps=1 (report the tokens, so that another
runner can resume it). An input has the vector (its length, its number), `EMBEDDED` of them in an
entry, and is cut where it may be and says cut=1; the first one has orders. It keeps every promise
that a runner makes, credit above all, and prints one JSON line for each thing that it is told.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from bus.links.reactor import PollReactor
from bus.links.transport import Link
from bus.process.identity import new_boot
from bus.wire.data_frames import pack_ids, pack_to_gateway, unpack_to_runner
from bus.wire.errors import BadMessage, Refusal
from bus.wire.ids import InstanceId, NodeId, RequestId
from bus.wire.messages.requests import (
    ChatPrompt,
    GenerationRequest,
    InputsPrompt,
    TextPrompt,
    Usage,
)
from bus.wire.messages.tokens import (
    Accepted,
    AnswerSoFar,
    Begun,
    Cancel,
    ChoiceEnd,
    ChoiceSoFar,
    Credit,
    Displaced,
    Entry,
    Failed,
    Finished,
    Hello,
    Ping,
    Pong,
    Recall,
    Refused,
    StepEntries,
    Submit,
    Suspended,
    ToGateway,
    TokenDelta,
    ToolCallDelta,
    Traced,
    TraceSpan,
    Vectors,
    Welcome,
)
from bus.wire.messages.traces import (
    RANK_PARTS,
    RankPart,
    RankSpans,
    RankTraced,
    RankTurn,
)

WORDS = ("one ", "two ", "three ", "four ", "five ", "six ", "seven ", "eight ")

EMBEDDED = 32
"""Vectors in an entry."""
EXIT_ORPHANED = 75


def tell(event: str, **facts: object) -> None:
    """One line for the test that started us."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


@dataclass
class Row:
    """One request in the made-up batch."""

    peer: bytes
    request: GenerationRequest
    orders: dict[str, str]
    credit: list[int]
    tokens: int
    every_s: float
    next_at: float
    received_at: float = 0.0
    seq: int = 0
    keeps: bool = False
    made: list[int] = field(default_factory=list[int])
    blocked: bool = False

    def number(self) -> int:
        self.seq += 1
        return self.seq - 1

    def most(self) -> int:
        """So many tokens are made for a choice."""
        return min(self.tokens, int(self.orders.get("silent", self.tokens)))

    def is_silent(self) -> bool:
        return "silent" in self.orders and min(self.made) >= self.most()


def length_of(request: GenerationRequest) -> int:
    """The characters of a conversation."""
    turns = request.prompt.messages if isinstance(request.prompt, ChatPrompt) else ()
    return sum(len(part.text) for turn in turns for part in turn.parts if part.kind == "text")


class SyntheticRunner:
    """The process. `step` counts rounds in which anything was made."""

    def __init__(self, socket: str, instance: InstanceId, generation: int, protocol: int) -> None:
        self.protocol = protocol
        self.reactor = PollReactor()
        self.instance, self.generation = instance, generation
        self.boot = new_boot()
        self.rows: dict[RequestId, Row] = {}
        self.displaced: Counter[RequestId] = Counter()
        self.step = 0
        self.link = Link("router", high_water=100_000)
        self.link.bind(socket)
        self.reactor.watch(self.link, self.heard)

    def run(self) -> None:
        tell("up")
        while True:
            now = self.reactor.now()
            due = [row.next_at for row in self.rows.values() if self.can_move(row)]
            self.reactor.turn(max(0.0, min(min(due, default=now + 0.2) - now, 0.2)))
            self.round()

    def can_move(self, row: Row) -> bool:
        return not row.is_silent() and (row.tokens <= 0 or any(c > 0 for c in row.credit))

    def heard(self, frames: list[bytes]) -> None:
        peer, data = frames[0], frames[-1]
        try:
            message = unpack_to_runner(data)
        except BadMessage as error:
            tell("bad", error=str(error))
            return
        match message:
            case Hello():
                protocol = min(self.protocol, message.protocol_max)
                self.send(peer, Welcome(self.instance, self.generation, self.boot, protocol))
            case Ping():
                self.send(peer, Pong(self.boot, self.step, bool(self.rows)))
            case Submit():
                self.submit(peer, message)
            case Credit(request_id, choice, grant):
                row = self.rows.get(request_id)
                if row is not None:
                    row.credit[choice] += grant
            case Cancel(request_id, why):
                tell("cancel", request=request_id, why=why)
                self.cancel(request_id)
            case Recall(request_id, begun):
                tell("recall", request=request_id, begun=begun)
                self.recall(request_id, begun=begun)

    def submit(self, peer: bytes, message: Submit) -> None:
        request, received_at = message.request, self.reactor.now()
        orders = orders_of(request)
        tell(
            "submit",
            request=request.request_id,
            n=request.n,
            priority=request.priority,
            remaining_ms=message.remaining_ms,
            sharer=message.sharer,
            waited_ms=message.waited_ms,
            resumes=message.resumes,
            deaths=message.deaths,
            suspect=message.suspect,
            has=[len(one.tokens) for one in message.so_far.choices] if message.so_far else [],
        )
        if "mute" in orders:
            return
        if "refuse" in orders:
            reason = orders["refuse"]
            refusal = Refusal.model_validate(
                {
                    "reason": reason,
                    "message": f"refused: {reason}",
                    "position": 9 if reason == "queue_full" else None,
                    "retry_after_s": 3.0 if reason == "queue_full" else None,
                }
            )
            self.send(peer, Refused(request.request_id, refusal))
            return
        if "fits" in orders and (length := length_of(request)) > int(orders["fits"]):
            facts = {"prompt_tokens": length, "limit_tokens": int(orders["fits"])}
            refusal = Refusal(reason="context_length", message="it does not fit", facts=facts)
            self.send(peer, Refused(request.request_id, refusal))
            return
        if len(self.rows) >= int(orders.get("places", "1000000")):
            full = Refusal(reason="queue_full", message="all places are taken", position=9)
            self.send(peer, Refused(request.request_id, full))
            return
        unheeded = ("tools.strict",) if "unheeded" in orders else ()
        keeps = message.resumes and "keeps" in orders
        self.send(peer, Accepted(request.request_id, 0, 7, unheeded, keeps))
        if self.displaced[request.request_id] < int(orders.get("displace", "0")):
            self.displaced[request.request_id] += 1
            for _ in range(1 + ("back_twice" in orders)):
                self.send(peer, Displaced(request.request_id))
            return
        if isinstance(request.prompt, InputsPrompt):
            entries = [*vectors_of(request, request.prompt), *ending_of(request, orders)]
            self.send(peer, StepEntries(self.step, tuple(numbered(entries))))
            return
        tokens = int(orders.get("tokens", "8"))
        if request.max_tokens is not None:
            tokens = min(tokens, request.max_tokens)
        every_s = float(orders.get("every_ms", "0")) / 1000
        self.rows[request.request_id] = Row(
            peer=peer,
            request=request,
            orders=orders,
            credit=[message.credit] * request.n,
            tokens=tokens,
            every_s=every_s,
            next_at=self.reactor.now() + every_s,
            received_at=received_at,
            keeps=keeps,
            made=[one.sent for one in message.so_far.choices]
            if message.so_far
            else [0] * request.n,
        )
        if keeps:
            prompt, seeds = pack_ids(range(7)), tuple(range(request.n))
            self.send(peer, Begun(request.request_id, prompt, tokens + 1, seeds, 0))

    def cancel(self, request_id: RequestId) -> None:
        row = self.rows.pop(request_id, None)
        if row is None:
            return
        if "back_late" in row.orders:
            self.send(row.peer, Displaced(request_id))
            return
        entries: list[Entry] = [
            ChoiceEnd(request_id, row.number(), choice, "cancelled", None)
            for choice in range(row.request.n)
        ]
        entries.append(Finished(request_id, row.number(), usage_of(row)))
        self.send(row.peer, StepEntries(self.step, tuple(entries)))

    def recall(self, request_id: RequestId, *, begun: bool) -> None:
        row = self.rows.get(request_id)
        if row is None or "stays" in row.orders or (any(row.made) and not begun):
            return
        del self.rows[request_id]
        if not any(row.made):
            self.send(row.peer, Displaced(request_id))
            return
        choices = tuple(ChoiceSoFar(1, tuple(range(made)), made) for made in row.made)
        so_far = AnswerSoFar((1, 2, 3, 4, 5, 6, 7), row.tokens, choices, usage_of(row))
        self.send(row.peer, Suspended(request_id, so_far))

    def round(self) -> None:
        now = self.reactor.now()
        by_peer: dict[bytes, list[Entry]] = {}
        ended: list[Row] = []
        for request_id, row in list(self.rows.items()):
            if row.next_at > now or row.is_silent():
                continue
            entries = self.entries(row)
            if not entries:
                continue
            by_peer.setdefault(row.peer, []).extend(entries)
            row.next_at = max(row.next_at + row.every_s, now)
            if isinstance(entries[-1], Finished | Failed):
                del self.rows[request_id]
                if row.request.trace and "untold" not in row.orders:
                    self.send(row.peer, trace_of(row, now))
                    ended.append(row)
        if by_peer:
            self.step += 1
        for peer, entries in by_peer.items():
            self.send(peer, StepEntries(self.step, tuple(entries)))
        for row in ended:
            for rank in range(int(row.orders.get("ranks", "0"))):
                if str(rank) != row.orders.get("quiet"):
                    self.send(row.peer, rank_trace_of(row, rank, now))

    def entries(self, row: Row) -> list[Entry]:
        request_id, made = row.request.request_id, []
        many = 1 if row.every_s else 64
        for choice in range(row.request.n):
            for _ in range(min(many, row.credit[choice], row.most() - row.made[choice])):
                if str(row.seq) == row.orders.get("skip"):
                    row.number()
                word = WORDS[row.made[choice] % len(WORDS)]
                ids = pack_ids((row.made[choice],)) if row.keeps else b""
                made.append(TokenDelta(request_id, row.number(), choice, "text", word, 1, (), ids))
                row.made[choice] += 1
                row.credit[choice] -= 1
        if min(row.made) >= row.tokens:
            made += self.ending(row)
        elif not made and not row.blocked:
            row.blocked = True
            tell("blocked", request=request_id, made=sum(row.made))
        return made

    def ending(self, row: Row) -> list[Entry]:
        request_id, made = row.request.request_id, []
        if "fail" in row.orders:
            failed = {"reason": row.orders["fail"], "message": "as ordered"}
            return [
                Failed(request_id, row.number(), failed["reason"], failed["message"], Usage(), {})
            ]  # type: ignore[arg-type]
        for choice in range(row.request.n):
            if "calls" in row.orders:
                made.append(
                    ToolCallDelta(request_id, row.number(), choice, 0, "call_1", "f", '{"a":1}', 0)
                )
            limited = row.request.max_tokens == row.tokens
            finish = "tool_calls" if "calls" in row.orders else "length" if limited else "stop"
            made.append(ChoiceEnd(request_id, row.number(), choice, finish, None))
        made.append(Finished(request_id, row.number(), usage_of(row)))
        return made

    def send(self, peer: bytes, message: ToGateway) -> None:
        if not self.link.send(peer, pack_to_gateway(message)):
            tell("undelivered", kind=type(message).__name__)


def trace_of(row: Row, now: float) -> Traced:
    """What a runner tells of a request that ends now, which was accepted as it came."""
    whole_s = now - row.received_at
    spans = (
        TraceSpan("template", 0, 0.0, 0.0),
        *(TraceSpan("queued", n, 0.0, 0.0) for n in range(row.request.n)),
        *(TraceSpan("decode", n, 0.0, whole_s, made, made) for n, made in enumerate(row.made)),
    )
    came_at = row.received_at
    ranks = tuple(NodeId(f"n{rank + 1}") for rank in range(int(row.orders.get("ranks", "0"))))
    return Traced(row.request.request_id, came_at, came_at, now, row.request.n, spans, ranks)


def rank_trace_of(row: Row, rank: int, now: float) -> RankTraced:
    """What a rank tells of a request that ends now, by the lead's own clock."""
    took_s = now - row.received_at
    seconds = tuple(took_s if part == "compute" else 0.0 for part in RANK_PARTS)
    turn = RankTurn("decode", 1, 1, 0.0, took_s, row.made[0], seconds)
    part = RankPart("compute", 0.0, took_s)
    spans = RankSpans(row.received_at, took_s, (turn,), (part,), (), ())
    return RankTraced(row.request.request_id, rank, 0.0, 0.0, spans)


def usage_of(row: Row) -> Usage:
    unsaid = int(row.orders.get("unsaid", "0"))
    return Usage(prompt_tokens=7, completion_tokens=sum(row.made) + unsaid, decode_s=0.01)


def orders_of(request: GenerationRequest) -> dict[str, str]:
    """The words of the last message that are orders."""
    prompt = request.prompt
    if isinstance(prompt, ChatPrompt):
        text = "".join(one.text for one in prompt.messages[-1].parts if one.kind == "text")
    elif isinstance(prompt, TextPrompt):
        text = prompt.text
    elif isinstance(prompt, InputsPrompt) and isinstance(prompt.inputs[0], str):
        text = prompt.inputs[0]
    else:
        text = ""
    words = [word.partition("=") for word in text.split() if "=" in word]
    return {name: value for name, _, value in words}


def vectors_of(request: GenerationRequest, prompt: InputsPrompt) -> list[Entry]:
    """The vectors of all inputs; of as many numbers as were asked for, else two. The score of a
    document is its length."""
    made: list[Entry] = []
    width = 1 if prompt.query is not None else prompt.dimensions or 2
    for start in range(0, len(prompt.inputs), EMBEDDED):
        part = list(enumerate(prompt.inputs[start : start + EMBEDDED], start))
        numbers = [(float(len(one)), float(n), *[0.0] * width)[:width] for n, one in part]
        vectors = tuple(struct.pack(f"<{len(one)}f", *one) for one in numbers)
        cut = tuple(n for n, one in part if prompt.cut and isinstance(one, str) and "cut=1" in one)
        made.append(Vectors(request.request_id, 0, 0, start, vectors, cut))
    return made


def ending_of(request: GenerationRequest, orders: dict[str, str]) -> list[Entry]:
    """The end of a request for vectors."""
    if "fail" in orders:
        facts = {"field": "input", "prompt_tokens": 9, "limit_tokens": 8}
        reason: Any = orders["fail"]
        return [Failed(request.request_id, 0, reason, "as ordered", Usage(), facts)]
    prompt = request.prompt
    assert isinstance(prompt, InputsPrompt)
    usage = Usage(prompt_tokens=sum(map(len, prompt.inputs)), queue_s=0.25, prefill_s=0.5)
    return [
        ChoiceEnd(request.request_id, 0, 0, "stop", None),
        Finished(request.request_id, 0, usage),
    ]


def numbered(entries: list[Entry]) -> list[Entry]:
    """Entries with their numbers in one request."""
    return [structs.replace(entry, seq=seq) for seq, entry in enumerate(entries)]


def end_with_parent() -> None:
    """End this process when the pipe on its standard input is closed, as by the end of a test."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(EXIT_ORPHANED)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    end_with_parent()
    SyntheticRunner(sys.argv[1], InstanceId(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])).run()


if __name__ == "__main__":
    main()
