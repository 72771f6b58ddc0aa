"""A model's card over HTTP: real resources and files, nodes that tell of them as workers do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from falcon import testing
from falcon.asgi import App

from bus.models.cards import KNOWN_KEYS
from bus.wire.errors import BadRequest
from gateway.dialects.faults import HttpFault, HttpFaultRaised, of_error
from gateway.http.resources.pulls import CardBody
from gateway.http.routes import ROUTES
from gateway.requests.catalog import ModelCatalog
from tests.harness.card_nodes import CardNodes, M

AT = f"/models/card/{M}"
Act = Callable[[testing.ASGIConductor], Coroutine[Any, Any, Any]]


class Desk:
    """The resources of one gateway, at node `a`."""

    def __init__(self, folder: Path) -> None:
        self.nodes = CardNodes(folder)

    def run(self, act: Act) -> Any:
        """Do this with a client."""

        async def main() -> Any:
            """Serve, with workers that look at their disks."""
            app: App[Any, Any] = App()
            for kind in (HttpFaultRaised, BadRequest):
                app.add_error_handler(kind, _told)
            handle: Any = SimpleNamespace(service=SimpleNamespace(cluster=self._cluster()))
            for path in dict.fromkeys(one.path for one in ROUTES if "/models/card/" in one.path):
                make: Any = next(one.resource for one in ROUTES if one.path == path)
                app.add_route(path, make(handle))
            looking = asyncio.ensure_future(self._look())
            try:
                async with asyncio.timeout(60), testing.ASGIConductor(app) as conductor:
                    return await act(conductor)
            finally:
                looking.cancel()

        return asyncio.run(main())

    def keep(self, name: str, told: dict[str, Any]) -> None:
        """Have a node say this of its copy."""
        self.nodes.changes[name] = told
        self.nodes.tell(name)

    async def _look(self) -> None:
        while True:
            for name in "ab":
                self.nodes.tell(name)
            await asyncio.sleep(0.02)

    def _cluster(self) -> Any:
        bus = self.nodes.bus("a")
        bus.mirror = SimpleNamespace(live=True)
        bus.state = SimpleNamespace(instances={}, derived={})
        clients: Any = None
        return SimpleNamespace(
            bus=bus,
            readings=self.nodes.readings,
            catalog=ModelCatalog(bus, self.nodes.readings, clients),
            card_files=self.nodes.a,
            reactor=bus.reactor,
            options=SimpleNamespace(
                has_port=True, body_s=5.0, body_limit_bytes=1 << 20, body_depth=32, port=1, node="a"
            ),
        )


async def _told(req: Any, resp: Any, error: Exception, params: Any) -> None:
    fault = of_error(error)
    assert isinstance(fault, HttpFault)
    resp.status = fault.status
    resp.media = {"code": fault.code, "message": fault.message, "field": fault.field}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def put(desk: Desk, body: Any, **headers: str) -> Any:
    """Put a card, TOML as text, JSON as a mapping."""
    if isinstance(body, str):
        sent: dict[str, Any] = {"body": body.encode()}
        headers = {"content-type": "application/toml", **headers}
    else:
        sent = {"json": body}
    return desk.run(lambda client: client.simulate_put(AT, headers=headers, **sent))


def test_a_card_is_written_on_all_nodes_and_told_with_its_settings(desk: Desk) -> None:
    text = 'aliases = ["quick"]  # mine\ntemperature = 0.2\ncontext_tokens = 64\n'
    written = put(desk, text)
    assert written.status_code == 200, written.text
    assert written.json["in_force"] and written.json["remarks"] == []
    assert written.json["card"]["temperature"] == 0.2
    assert [one["done"] for one in written.json["nodes"]] == [True, True, False]
    assert desk.nodes.text("a") == desk.nodes.text("b") == text
    shown = desk.run(lambda client: client.simulate_get(AT)).json
    assert (shown["model"], shown["toml"], shown["refused"]) == (M, text, "")
    assert shown["settings"]["top_p"]["source"] == "shoal's default"
    assert [one["is_newest"] for one in shown["nodes"]] == [True, True, False]
    assert "node c is not connected" in shown["nodes"][2]["unknown"]


def test_the_same_is_said_in_json(desk: Desk) -> None:
    written = put(desk, {"temperature": 0, "stop": ["END"], "pin": None, "system": "Be\nkind."})
    assert written.status_code == 200, written.text
    assert written.json["card"] == {"temperature": 0.0, "stop": ["END"], "system": "Be\nkind."}
    assert desk.nodes.text("b") == written.json["toml"]


def test_json_has_the_keys_that_a_card_has() -> None:
    assert set(CardBody.model_fields) == set(KNOWN_KEYS) - {"template"}


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ("pin = true\ntemprature = 1\n", "temprature", "line 2: the card has no key 'temprature'"),
        ({"num_ctx": 5}, "num_ctx", "did you mean context_tokens?"),
        ({"temperature": 9}, "temperature", "must be at most 5"),
        ({"temperature": "hot"}, "temperature", "number"),
        ("pin = ", None, "the card is not valid TOML"),
        ("template = '{{ .Prompt }}'\n", "template", "shoal runs no Go templates"),
        ({"template": "{{ .Prompt }}"}, "template", "shoal runs no Go templates"),
    ],
)
def test_what_no_card_may_say_is_refused_and_no_node_has_it(
    desk: Desk, body: Any, field: str | None, words: str
) -> None:
    refused = put(desk, body)
    assert (refused.status_code, refused.json["field"]) == (400, field), refused.text
    assert words in refused.json["message"]
    assert (desk.nodes.text("a"), desk.nodes.text("b")) == (None, None)


def test_a_card_that_another_has_changed_is_not_written_over(desk: Desk) -> None:
    before = desk.run(lambda client: client.simulate_get(AT))
    assert put(desk, "pin = true\n").status_code == 200
    late = put(desk, "pin = false\n", **{"if-match": before.headers["etag"]})
    assert (late.status_code, late.json["code"]) == (412, "card_changed"), late.text
    now = desk.run(lambda client: client.simulate_get(AT))
    good = put(desk, "pin = false\n", **{"if-match": now.headers["etag"]})
    assert good.status_code == 200 and desk.nodes.text("b") == "pin = false\n"


def test_a_card_is_taken_away_once(desk: Desk) -> None:
    assert put(desk, "pin = true\n").status_code == 200
    gone = desk.run(lambda client: client.simulate_delete(AT))
    assert gone.status_code == 200 and gone.json["in_force"] and gone.json["toml"] is None
    assert (desk.nodes.text("a"), desk.nodes.text("b")) == (None, None)
    desk.keep("a", {"origin": "cache"})
    kept = put(desk, "pin = true\n")
    assert kept.status_code == 200, "the other node takes it"
    desk.keep("b", {"bundled": True})
    stays = put(desk, "pin = false\n")
    assert (stays.status_code, stays.json["code"]) == (409, "card_kept"), stays.text
    assert "node-b: org/m and its card are part of shoal" in stays.json["message"]


def test_a_model_that_is_nowhere_has_no_card(desk: Desk) -> None:
    absent = desk.run(lambda client: client.simulate_get("/models/card/absent"))
    assert (absent.status_code, absent.json["code"]) == (404, "model_not_found")
