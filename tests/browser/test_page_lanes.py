"""The page's lanes of a traced request: what each rank of a group did when, and what crossed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.browser.browsing import WIDE, Tab, focused, opened, phone, reach, wide
from tests.harness.clusters import Cluster
from tests.harness.nodes import eventually

Told = dict[str, Any]
WHY = "the rank sent no data in time"


@pytest.fixture(scope="module")
def traced(cluster: Cluster) -> Told:
    """What is kept of a request that both nodes worked on."""
    cluster.place(min_nodes=2, sharding="pipeline")
    node = cluster.nodes[0]

    def answered() -> str | None:
        """Ask until each part of the gateway has heard of the copy."""
        answer = node.chat("What is shoal?", x_trace=True, max_tokens=120, ignore_eos=True)
        return answer.json()["id"] if answer.status_code == 200 else None

    name = eventually(answered, 60, "an answer")

    def kept() -> Told | None:
        """It is kept when all ranks have told."""
        answer = node.http.get(f"/v1/traces/{name}/raw")
        return answer.json() if answer.status_code == 200 else None

    found = eventually(kept, 20, "its trace")
    assert [rank["told"] for rank in found["ranks"]] == [True, True]
    return found


@pytest.fixture
def tab(browser: Browser, cluster: Cluster) -> Iterator[Tab]:
    with opened(browser, cluster.nodes[0].url) as made:
        made.open("/#requests")
        yield made
        made.check()


def shown(page: Page, trace: Told) -> Locator:
    """Have the lanes of a request shown."""
    page.get_by_role("button", name=f"Show {trace['request']}", exact=True).click()
    expect(page.locator(".lanes svg")).to_be_visible()
    return page.locator(".lanes")


def lane(page: Page, rank: int) -> Locator:
    return page.locator(f'.lanes svg > g[data-key="{rank}"]')


def table_of(lanes: Locator, number: int) -> Locator:
    return lanes.locator("table").nth(number).locator("tbody tr")


def span(page: Page, seconds: float) -> str:
    """A time as the page writes it."""
    return page.evaluate(
        "seconds => import('/dashboard/dom.js').then((dom) => dom.span(seconds))", seconds
    )


def drawn(page: Page, rank: int, kind: str) -> float:
    """How wide all that is drawn of a kind in a lane is together."""
    widths = (
        lane(page, rank)
        .locator(f"rect.{kind}")
        .evaluate_all("all => all.map(one => Number(one.getAttribute('width')))")
    )
    return sum(widths)


@pytest.mark.proof
def test_the_lanes_of_all_ranks_are_reached_and_walked_through_by_keyboard_alone(
    tab: Tab, cluster: Cluster, traced: Told
) -> None:
    page = tab.page
    name = f"Show {traced['request']}"
    expect(page.get_by_role("button", name=name, exact=True)).to_be_visible()
    reach(page, lambda: focused(page) == name, "the trace", most=80)
    page.keyboard.press("Enter")
    lanes = page.locator(".lanes")
    expect(lanes.get_by_role("status")).to_contain_text("In the whole request")
    names = {node.node_id(): node.env["SHOAL_NODE_NAME"] for node in cluster.nodes}
    for rank, told in enumerate(traced["ranks"]):
        expect(lane(page, rank)).to_contain_text(f"rank {rank}")
        expect(lane(page, rank)).to_contain_text(names[told["node"]])
        row = table_of(lanes, 0).nth(rank)
        expect(row).to_contain_text("computes")
        expect(row).to_contain_text("±")
    ways = {(one["what"], one["from"], one["to"]) for one in traced["links"]}
    expect(table_of(lanes, 1)).to_have_count(len(ways))
    expect(page.locator(".lanes .arrow")).to_have_count(0)

    reach(page, lambda: focused(page) == "Next step", "the next step", most=80)
    page.keyboard.press("Enter")
    expect(lanes.get_by_role("status")).to_contain_text("In step ")
    first = int(lanes.get_by_role("status").inner_text().split()[2].rstrip(":"))
    page.keyboard.press("Enter")
    expect(lanes.get_by_role("status")).not_to_contain_text(f"In step {first}:")
    step = int(lanes.get_by_role("status").inner_text().split()[2].rstrip(":"))
    assert step > first and focused(page) == "Next step"
    crossed = [one for one in traced["links"] if one["step"] == step]
    assert {one["what"] for one in crossed} >= {"hidden", "tokens"}
    expect(page.locator(".lanes .arrow")).to_have_count(len(crossed))
    expect(table_of(lanes, 1)).to_have_count(len(crossed))
    for number, one in enumerate(crossed):
        row = table_of(lanes, 1).nth(number)
        expect(row).to_contain_text(f"rank {one['from']} → {one['to']}")
        expect(row).to_contain_text(span(page, max(0.0, one["had_s"] - one["sent_s"])))
        expect(page.locator(".lanes .arrow text").nth(number)).to_have_text(str(number + 1))
    expect(lane(page, 0)).to_contain_text(f"step {step}")

    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(lanes.get_by_role("status")).to_contain_text(f"In step {first}:")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(lanes.get_by_role("status")).to_contain_text("In the whole request")


def test_what_is_drawn_is_as_long_as_what_was_told(tab: Tab, traced: Told) -> None:
    page = tab.page
    shown(page, traced)
    frame = page.locator(".lanes svg .grid").evaluate_all(
        "all => all.map(one => Number(one.getAttribute('x1')))"
    )
    width = max(frame) - min(frame)
    for rank, told in enumerate(traced["ranks"]):
        share = (told["ended_s"] - told["began_s"]) / traced["seconds"]
        for kind in ("turn", "phase"):
            part = drawn(page, rank, kind) / width
            assert abs(part - share) < 0.05, (rank, kind, part, share)


def test_a_view_begins_at_its_top_whatever_was_scrolled_before(tab: Tab, traced: Told) -> None:
    page = tab.page
    page.set_viewport_size({"width": WIDE[0], "height": 400})
    shown(page, traced)
    main = page.locator("main")
    assert main.evaluate("one => (one.scrollTop = 200, one.scrollTop)") == 200
    tab.view("watch")
    expect(page.locator('.plot[data-key="memory"]')).to_have_count(1)
    assert main.evaluate("one => [one.scrollTop, one.scrollHeight > one.clientHeight]") == [0, True]


def changed(page: Page) -> None:
    """Have the trace say that rank 1 told nothing."""

    def silenced(route: Route) -> None:
        answer = route.fetch()
        trace = answer.json()
        trace["ranks"][1] = {**{name: trace["ranks"][1][name] for name in ("rank", "node")},
                             "told": False, "why": WHY}  # fmt: skip
        trace["links"] = []
        route.fulfill(response=answer, body=json.dumps(trace))

    page.route("**/v1/traces/*/raw", silenced)


def test_a_rank_that_told_nothing_is_named_with_the_reason(tab: Tab, traced: Told) -> None:
    changed(tab.page)
    lanes = shown(tab.page, traced)
    expect(lane(tab.page, 1)).to_contain_text(f"no data: {WHY}")
    expect(lane(tab.page, 1).locator(".phase")).to_have_count(0)
    expect(table_of(lanes, 0).nth(1)).to_contain_text(WHY)
    expect(table_of(lanes, 0).nth(0)).to_contain_text("computes")
    expect(lanes).to_contain_text("No transfer was recorded at both ends.")
    described = lanes.locator("svg").get_attribute("aria-label")
    assert described is not None and "1 without data" in described


@pytest.mark.proof
@pytest.mark.parametrize(("size", "scheme"), [wide("dark"), phone("light")])
def test_axe_finds_nothing_in_lanes(
    browser: Browser,
    cluster: Cluster,
    traced: Told,
    axe: str,
    size: tuple[int, int],
    scheme: str,
) -> None:
    with opened(browser, cluster.nodes[0].url, size, scheme) as tab:  # type: ignore[arg-type]
        page = tab.open("/#requests")
        page.evaluate(axe)
        lanes = shown(page, traced)
        looks_well(page)
        page.get_by_role("button", name="Next step").click()
        expect(lanes.get_by_role("status")).to_contain_text("In step ")
        looks_well(page)
        tab.check()


def looks_well(page: Page) -> None:
    assert page.evaluate("axe.run(document)")["violations"] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
