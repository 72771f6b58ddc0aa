"""The page of a cluster: its links with why they are not measured, a model placed by hand on chosen
nodes, and settings of all nodes."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.browser.browsing import SIZES, Tab, focused, opened, reach
from tests.harness.clusters import Cluster
from tests.harness.nodes import MODEL, Node, eventually

REFUSED = "Failed to load resource"
MEASURED_S = 120.0


@pytest.fixture
def tab(browser: Browser, cluster: Cluster) -> Iterator[Tab]:
    with opened(browser, cluster.nodes[0].url, expects=(REFUSED,)) as made:
        made.open("/#cluster")
        made.page.wait_for_selector(".pulse.good")
        yield made
        made.check()


# --- links ----------------------------------------------------------------------------------------


def link_row(page: Page) -> Locator:
    return page.locator("main.cluster table tbody tr")


def test_links_are_shown_as_measured_on_the_page_in_words_and_in_metrics(
    tab: Tab, cluster: Cluster
) -> None:
    row = link_row(tab.page)
    expect(row).to_contain_text("echo", timeout=MEASURED_S * 1000)
    expect(row).to_contain_text("at least")
    expect(row).to_contain_text("ago")
    expect(tab.page.get_by_text("latency every 10 s, bandwidth every 1 min")).to_be_visible()
    asked = cluster.nodes[0]
    (line,) = (one for one in asked.shoal("nodes").stdout.splitlines() if one.startswith("kelp"))
    assert "us, " in line and "/s+" in line
    scraped = eventually(
        lambda: text if "\nshoal_link_latency_seconds{" in (text := metrics(asked)) else None,
        MEASURED_S,
        "the link is among the metrics",
    )
    assert f'peer="{cluster.nodes[1].node_id()}"' in scraped
    assert "\nshoal_link_bandwidth_bytes_per_second{" in scraped


def metrics(node: Node) -> str:
    return node.http.get("/metrics").text


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("busy_here", "not measured while reef answers"),
        ("busy_there", "not measured while kelp answers"),
        ("unanswered", "no address answers"),
        ("off", "measure_links is off on kelp"),
    ],
)
def test_why_a_link_is_not_measured_is_told(
    browser: Browser, cluster: Cluster, why: str, said: str
) -> None:
    """The node's own state is told with another reason in it, for either way."""
    asked, other = (node.node_id() for node in cluster.nodes)
    peer_of = {asked: other, other: asked}
    seen_by_kelp = {"busy_here": "busy_there", "busy_there": "busy_here"}

    def changed(route: Route) -> None:
        answer = route.fetch()
        state = answer.json()
        for node, reading in state["telemetry"]["links"].items():
            its = why if node == asked else seen_by_kelp.get(why, why)
            reading["links"] = []
            reading["latency_every_s"] = 0 if why == "off" else 10.0
            reading["resting"] = [] if why == "off" else [{"peer": peer_of[node], "why": its}]
        route.fulfill(response=answer, body=json.dumps(state))

    with opened(browser, cluster.nodes[0].url) as tab:
        tab.page.route("**/state", changed)
        page = tab.open("/#cluster")
        expect(link_row(page)).to_contain_text(said)
        expect(page.locator(".edge text")).to_have_text(["this machine", "not measured"])
        tab.check()


@pytest.mark.proof
def test_what_a_link_is_and_which_ranks_send_what_over_it_is_told_in_words(
    tab: Tab, cluster: Cluster
) -> None:
    cluster.clear()
    page = tab.page
    row = link_row(page)
    expect(row).to_contain_text("this machine")
    expect(row).to_contain_text("no ranks")
    placed = cluster.place(min_nodes=2, sharding="pipeline")
    stages = sorted(placed["shards"], key=lambda shard: shard["first_layer"])
    first, last = (shard["rank"] for shard in stages)
    expect(row).to_contain_text(f"{MODEL}: hidden states, rank {first} → {last}")
    expect(row).to_contain_text(f"{MODEL}: tokens, rank {last} → {first}")
    expect(row).to_contain_text(f"{MODEL}: plans, rank 0 → 1")
    names = {node.node_id(): node.env["SHOAL_NODE_NAME"] for node in cluster.nodes}
    for shard in stages:
        box = page.locator(".node", has_text=names[shard["node"]])
        expect(box).to_contain_text(f"rank {shard['rank']} · {MODEL}")


def test_a_ring_of_thunderbolt_bridges_is_said_with_what_to_do(
    browser: Browser, cluster: Cluster
) -> None:
    """The node's own snapshot is told with such a ring in it."""
    asked = cluster.nodes[0]
    snapshot = asked.http.get("/metrics/snapshot").json()
    snapshot["bridge_loops"] = [[node.node_id() for node in cluster.nodes]]
    told = f"event: snapshot\ndata: {json.dumps(snapshot)}\n\n"
    with opened(browser, asked.url) as tab:
        tab.page.route(
            "**/metrics/stream",
            lambda route: route.fulfill(body=told, content_type="text/event-stream"),
        )
        page = tab.open("/#cluster")
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text("The Thunderbolt bridges of reef, kelp form a loop")
        expect(alert.locator("code")).to_contain_text("networksetup")
        tab.check()


# --- a model placed by hand -----------------------------------------------------------------------


def nodes_of(cluster: Cluster) -> list[set[str]]:
    """The nodes of each instance that is ready, by name."""
    names = {node.node_id(): name for node, name in zip(cluster.nodes, NAMES, strict=True)}
    instances = cluster.nodes[0].state()["instances"].values()
    ready = [one for one in instances if one["status"] == "ready"]
    return [{names[shard["node"]] for shard in one["shards"]} for one in ready]


NAMES = ("reef", "kelp")


def by_hand(page: Page) -> Locator:
    """The form, with its part for placing by hand open."""
    page.get_by_role("button", name=f"Load {MODEL}", exact=True).click()
    page.wait_for_selector(".plan form")
    page.locator(".by-hand summary").click()
    return page.locator(".plan")


def test_a_model_is_placed_on_a_chosen_node_by_keyboard_alone(tab: Tab, cluster: Cluster) -> None:
    cluster.clear()
    page = tab.page
    tab.view("models")
    page.wait_for_selector("tbody .chip")
    reach(page, lambda: focused(page) == f"Load {MODEL}", "the button that loads")
    page.keyboard.press("Enter")
    plan = page.locator(".plan")
    expect(plan).to_contain_text("Placement preview")
    at = "document.activeElement"
    reach(page, lambda: page.evaluate(f"{at}.innerText") == "Choose the placement", "by hand")
    page.keyboard.press("Enter")
    kelp = cluster.nodes[1].node_id()
    reach(page, lambda: page.evaluate(f"{at}.value") == kelp, "kelp")
    page.keyboard.press("Space")
    expect(plan).to_contain_text("On kelp, ")
    reach(page, lambda: page.evaluate(f"{at}.name") == "context", "the context")
    page.keyboard.type("1024")
    page.keyboard.press("Tab")
    plan.get_by_text("Details").click()
    expect(plan.locator("code")).to_contain_text("for 1,024 tokens")
    reach(page, lambda: focused(page) == "Load it", "the button")
    page.keyboard.press("Enter")
    expect(page.locator("p.good")).to_contain_text("Loading ")
    eventually(lambda: nodes_of(cluster) == [{"kelp"}], 90, "it is on kelp")
    expect(page.locator(".pill.good", has_text="ready")).to_be_visible(timeout=30_000)
    (instance,) = cluster.nodes[0].state()["instances"].values()
    assert instance["context_tokens"] >= 1024


@pytest.mark.proof
def test_a_model_is_split_over_chosen_nodes(tab: Tab, cluster: Cluster) -> None:
    cluster.clear()
    page = tab.page
    tab.view("models")
    plan = by_hand(page)
    for name in NAMES:
        plan.get_by_label(name, exact=True).check()
    expect(plan).to_contain_text("Layers on different nodes")
    expect(plan.locator("details p", has_text="layers")).to_have_count(2)
    plan.get_by_label("Split").select_option("tensor")
    expect(plan.locator("form > p")).to_contain_text("Every layer on all nodes")
    plan.get_by_label("Split").select_option("pipeline")
    expect(plan.locator("form > p")).to_contain_text("Layers on different nodes")
    page.get_by_role("button", name="Load it").click()
    eventually(lambda: nodes_of(cluster) == [set(NAMES)], 90, "it is on both")
    expect(page.locator(".pill.good", has_text="ready")).to_be_visible(timeout=30_000)
    by_hand(page)
    page.get_by_role("button", name="Load it").click()
    expect(page.locator("p.good")).to_contain_text("already matches this request")


def test_what_cannot_be_placed_so_is_told_in_words_and_mended(tab: Tab) -> None:
    tab.view("models")
    plan = by_hand(tab.page)
    context = plan.get_by_label("Context in tokens")
    context.fill("900000000")
    context.press("Tab")
    expect(plan.get_by_role("alert")).to_contain_text("context_tokens is 900,000,000")
    expect(plan.get_by_role("button", name="Load it")).to_be_disabled()
    context.fill("512")
    context.press("Tab")
    expect(plan.get_by_role("alert")).to_have_count(0)
    expect(plan.get_by_role("button", name="Load it")).to_be_enabled()


@pytest.mark.proof
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing_in_links_and_in_a_placement_by_hand(
    browser: Browser, cluster: Cluster, axe: str, size: tuple[int, int]
) -> None:
    with opened(browser, cluster.nodes[0].url, size) as tab:
        page = tab.open("/#cluster")
        page.evaluate(axe)
        page.wait_for_selector("main.cluster tbody tr")
        looks_well(page)
        tab.view("models")
        by_hand(page).get_by_label("kelp", exact=True).check()
        expect(page.locator(".plan")).to_contain_text("On kelp")
        looks_well(page)
        tab.view("settings")
        page.locator('.setting[data-key="keep_alive_s"]').get_by_role("button").click()
        expect(page.get_by_label("On every node of the cluster")).to_be_visible()
        looks_well(page)
        tab.check()


def looks_well(page: Page) -> None:
    assert page.evaluate("axe.run(document)")["violations"] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


# --- settings of all nodes ------------------------------------------------------------------------


def written(node: Node) -> dict[str, Any]:
    return tomllib.loads((node.home / "config" / "shoal.toml").read_text())


def open_setting(page: Page, key: str) -> Locator:
    row = page.locator(f'.setting[data-key="{key}"]')
    row.get_by_role("button", name=f"Change {key}").click()
    return row


def everywhere(cluster: Cluster, is_so: Callable[[dict[str, Any]], bool]) -> bool:
    return all(is_so(written(node)) for node in cluster.nodes)


@pytest.mark.proof
def test_a_setting_is_changed_on_every_node_and_those_that_differ_are_named(
    tab: Tab, cluster: Cluster
) -> None:
    page = tab.page
    tab.view("settings")
    row = open_setting(page, "keep_alive_s")
    page.get_by_label("keep_alive_s", exact=True).fill("77")
    page.get_by_label("On every node of the cluster").check()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("keep_alive_s is saved on reef, kelp.")).to_be_visible()
    assert everywhere(cluster, lambda file: file["keep_alive_s"] == 77.0)
    done = cluster.nodes[1].shoal("config", "set", "keep_alive_s", "78")
    assert done.returncode == 0, done.stderr
    expect(row).to_contain_text("kelp: 78")
    expect(page.locator(".head")).to_contain_text("differ")
    page.get_by_label("Only settings that differ between nodes").check()
    expect(row).to_be_visible()
    expect(page.locator('.setting[data-key="log_level"]')).to_have_count(0)
    open_setting(page, "keep_alive_s")
    page.get_by_label("On every node of the cluster").check()
    page.get_by_role("button", name="Use the default").click()
    expect(page.get_by_text("keep_alive_s has its default again on reef, kelp.")).to_be_visible()
    assert everywhere(cluster, lambda file: "keep_alive_s" not in file)
