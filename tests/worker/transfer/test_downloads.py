"""A real worker whose shard's weights lie on another node: real bus, holder, supervisord, store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.client import BusClient, Speaker
from bus.process.clock import wall
from bus.wire.cards import ModelCard, NodeCard
from bus.wire.codec import Envelope
from bus.wire.ids import Boot, CommandId, InstanceId, ModelId, NodeId
from bus.wire.messages.commands import DeleteInstance, PlaceModel
from bus.wire.messages.readings import CardReading, WeightsReading
from tests.harness.weights_node import StoreNode
from tests.worker.test_service import DEFAULTS, NODE, House
from tests.worker.transfer.test_store import big_model, content
from worker.eviction import StoreSettings
from worker.models.weights import Shelf, Weights
from worker.pulling import PullSettings
from worker.service import Worker, WorkerSettings
from worker.slots.runner_specs import DataPorts
from worker.transfer.thread import WeightsSettings

pytestmark = pytest.mark.slow

N2 = NodeId("n2")
M = ModelId("owner/far")


class Household(House):
    """A house whose worker fetches, and another node's store and card."""

    def start_worker(self) -> Worker:
        models = self.folder / "models"
        weights = WeightsSettings(models, self.folder / "hashes", ("tcp://127.0.0.1:*",))
        settings = WorkerSettings(
            node_name="box",
            slots=2,
            memory_bytes=0,
            runner=DEFAULTS,
            data=DataPorts(listen="", port=0, hosts=()),
            ring_ports=(0, 0),
            plan_ports=(0, 0),
            weights=weights,
            pulls=PullSettings(models, models.parent / "pulls", offline=True),
            store=StoreSettings(models),
        )
        shelf = Weights(Shelf({}, (models,), None, float32=True))
        client = self.client("worker")
        return Worker(client, settings, self.supervisor, shelf)

    def listen(self) -> None:
        self.cards: dict[NodeId, NodeCard] = {}
        self.phases: list[str] = []
        self.fetching = False
        self.asker.hear("card", self._heard)
        self.asker.hear("reading.weights", self._heard)
        speaker = Speaker(N2, "worker", Boot("b2"))
        self.far = BusClient(speaker, self.endpoints, self.reactor, self.log, follow=False)
        self.until(lambda: NODE in self.cards, "this node's card")

    def _heard(self, _topic: str, envelope: Envelope) -> None:
        match envelope.message:
            case CardReading(card=card):
                self.cards[card.node] = card
            case WeightsReading(fetches=fetches):
                self.phases += [one.phase for one in fetches]
                self.fetching = bool(fetches)
            case _:
                return

    def give(self, megabytes: int, *, offered: bool = True) -> StoreNode:
        """n2 has the model, says so, and (where `offered`) gives it."""
        folder = big_model(self.folder / "far", megabytes)
        shelf = Weights(Shelf({M: folder}, (), None, float32=True))
        models = {M: folder} if offered else {}
        store = StoreNode(self.reactor, models, self.folder / "far-state")
        self.announce(N2, shelf.look(), (store.address,))
        self.until(lambda: N2 in self.cards, "its card")
        return store

    def announce(self, node: NodeId, models: tuple[ModelCard, ...], at: tuple[str, ...]) -> None:
        update = {"node": node, "models": models, "weights_addresses": at}
        late = {"announced_at_s": wall() + 1000.0}
        card = self.cards[NODE].model_copy(update={**update, **late})
        self.far.publish(f"card.{node}", CardReading(card=card))

    def place_far(self) -> InstanceId:
        """Have the model placed on this node, which does not have it."""
        mine, theirs = self.cards[NODE].models, self.cards[N2].models
        self.announce(NODE, (*mine, *theirs), self.cards[NODE].weights_addresses)
        self.until(lambda: len(self.cards[NODE].models) == 2, "the altered card")
        place = PlaceModel(command_id=CommandId("far"), model=M, excluded_nodes=(N2,))
        self.asker.command(place, lambda _answer: None, deadline_s=30.0)
        self.until(lambda: self.asker.state.instances, "its placement")
        return next(iter(self.asker.state.instances))

    def close(self) -> None:
        self.far.close()
        super().close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Household]:
    with tempfile.TemporaryDirectory(prefix="shoal-test-", dir="/tmp") as runtime:
        house = Household(tmp_path, runtime)
        house.listen()
        try:
            yield house
        finally:
            house.close()


def test_a_shard_whose_weights_lie_elsewhere_is_fetched_then_loaded_and_announced(
    house: Household,
) -> None:
    store = house.give(24)
    instance = house.place_far()
    house.until(lambda: house.is_ready(instance), "the instance")
    assert content(house.folder / "models" / M) == content(house.folder / "far")
    house.until(lambda: "done" in house.phases and not house.fetching, "the end of the fetch")
    house.until(lambda: house.cards[NODE].announced_at_s < wall() + 500, "a card of its own")
    card = next(one for one in house.cards[NODE].models if one.model == M)
    assert card.path == str(house.folder / "models" / M)
    assert house.cards[NODE].weights_addresses[0].startswith("tcp://127.0.0.1:")
    store.close()


def test_a_fetch_that_fails_refuses_the_load_and_names_who_was_tried(house: Household) -> None:
    store = house.give(4, offered=False)
    instance = house.place_far()
    house.until(
        lambda: house.asker.state.instances[instance].status == "failed", "the instance given up"
    )
    why = house.asker.state.instances[instance].why
    assert "owner/far could not be fetched" in why and "n2 at tcp://" in why
    house.until(lambda: "failed" in house.phases, "the failure among the readings")
    store.close()


def test_deleting_the_instance_gives_the_fetch_up(house: Household) -> None:
    store = house.give(8)
    store.close()  # from here on nobody answers
    instance = house.place_far()
    house.until(lambda: "asking" in house.phases, "the fetch")
    delete = DeleteInstance(command_id=CommandId("d"), instance=instance, drain_s=0.0)
    house.asker.command(delete, lambda _: None)
    house.until(lambda: not house.asker.state.instances, "its removal")
    house.until(lambda: not house.fetching, "the fetch given up")
    assert house.slots() == []
