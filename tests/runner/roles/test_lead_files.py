"""KV files of a lead: their faults are in its log, and their questions reach the worker."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

from bus.links.reactor import PollReactor
from bus.models.kv import KvKey, RunQuestion
from bus.wire.ids import ModelId
from bus.wire.kv import RunSought, SeekRun
from bus.wire.messages.wire import Message
from runner.roles.lead import LeadRole
from tests.harness.role_site import bare_parts


class Worker:
    """What the role's host passes on to the worker."""

    phase = "ready"

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def tell(self, message: Message) -> None:
        self.messages.append(message)


def test_faults_are_logged_and_questions_sent_from_any_thread(tmp_path: Path) -> None:
    reactor, worker, logged = PollReactor(), Worker(), io.StringIO()
    role = LeadRole(bare_parts(tmp_path, worker, reactor, logged))
    loop: Any = role._loop  # pyright: ignore[reportPrivateUsage]
    question = RunQuestion("p" * 8, "lora", 2_000, 64, b"12345678", (1.0, 2.0), 1e9)

    def of_another_thread() -> None:
        loop.say("deleted the KV of a prompt on disk")
        loop.seek(question, KvKey("folder", "how"))

    thread = threading.Thread(target=of_another_thread)
    thread.start()
    thread.join()
    reactor.turn(0.1)
    assert "deleted the KV of a prompt on disk" in logged.getvalue()
    (message,) = worker.messages
    assert message == SeekRun(
        model=ModelId("m"),
        prompt="p" * 8,
        adapter="lora",
        folder="folder",
        how="how",
        tokens=2_000,
        have=64,
        hashes=b"12345678",
        saves_s=(1.0, 2.0),
        read_bytes_per_s=1e9,
    )
    role.sought(RunSought(prompt="p" * 8, what="none"))  # before a model is loaded: ignored
    role.say_goodbye("the test is over")
    role.stop(0.0)
    reactor.close()
