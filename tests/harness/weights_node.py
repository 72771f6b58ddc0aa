"""A store, or a fetch, as a process of its own, so that it can be killed:

`weights_node.py store FOLDER MODEL STATE`        prints the address, gives until killed
`weights_node.py fetch ADDRESS MODEL MODELS`      prints bytes received as they come, ends when over
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from bus.client import Letters, Speaker
from bus.links.reactor import PollReactor
from bus.process.logs import Log
from bus.wire.errors import PortTaken
from bus.wire.ids import Boot, ModelId, NodeId
from worker.models.file_hashes import Hashes
from worker.models.layer_bytes import Layers
from worker.transfer.disk_thread import DiskThread
from worker.transfer.downloader import Downloader, DownloadNews, Wanted
from worker.transfer.source import StoreAddress
from worker.transfer.store import Store
from worker.transfer.thread import open_link


class StoreNode:
    """A node that gives. `models` by name, each in its folder."""

    def __init__(
        self,
        reactor: PollReactor,
        models: Mapping[str, Path],
        state: Path,
        address: str = "tcp://127.0.0.1:*",
        *,
        bytes_per_s: float = 0.0,
    ) -> None:
        link = open_link("router", None)
        try:
            self.address = link.bind(address)
        except PortTaken:
            link.close()
            raise
        self.jobs = DiskThread("hashing", reactor.call)
        pack = Letters(Speaker(NodeId("giver"), "worker", Boot("b"))).write
        log = Log(node="giver", process="test", level="error")
        self.store = Store(
            reactor, link, pack, self.jobs, Hashes(state), log, bytes_per_s=bytes_per_s
        )
        self.store.offers({ModelId(name): folder for name, folder in models.items()})

    def close(self) -> None:
        self.store.close()
        self.jobs.close()


class FetchNode:
    """A node that gets: everything ends below `models`."""

    def __init__(self, reactor: PollReactor, models: Path, *, margin_bytes: int = 0) -> None:
        self.reactor = reactor
        self.models = models
        self.jobs = DiskThread("disk", reactor.call)
        pack = Letters(Speaker(NodeId("getter"), "worker", Boot("b"))).write
        log = Log(node="getter", process="test", level="critical")
        self.fetcher = Downloader(
            reactor, open_link, pack, self.jobs, models, log, margin_bytes=margin_bytes
        )

    def want(
        self, model: str, *addresses: str, attempt: int = 1, layers: Layers | None = None
    ) -> None:
        sources = [StoreAddress(NodeId(f"n{n}"), address) for n, address in enumerate(addresses)]
        self.fetcher.want(Wanted(ModelId(model), attempt, sources, layers))

    def news(self, model: str) -> DownloadNews:
        return self.fetcher.news()[ModelId(model)]

    def close(self) -> None:
        self.fetcher.close()
        self.jobs.close()


def main() -> None:
    what, *rest = sys.argv[1:]
    reactor = PollReactor()
    if what == "store":
        folder, model, state = rest
        node = StoreNode(reactor, {model: Path(folder)}, Path(state))
        print(node.address, flush=True)
        reactor.run()
    address, model, models = rest
    getter = FetchNode(reactor, Path(models))
    getter.want(model, address)
    while (news := getter.news(model)).reading.phase not in ("done", "failed"):
        reactor.turn(0.05)
        print(news.received_bytes, flush=True)
    getter.close()


if __name__ == "__main__":
    main()
