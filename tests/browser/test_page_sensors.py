"""The page's cards of nodes: what sensors tell of accelerators and processors, and what not."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from bus.wire.accelerators import AcceleratorReading, HardwareReading, UntoldFigures
from bus.wire.ids import NodeId
from bus.wire.messages.readings import NodeReading
from bus.wire.messages.wire import Message
from bus.wire.topics import reading_topic
from tests.browser.browsing import opened
from tests.harness.gateway_testbed import NODE, GatewayTestbed, gateway_testbed

MINI = NodeId("n2")
H100 = AcceleratorReading(
    vendor="nvidia", device="00000000:1b:00.0", name="NVIDIA H100 80GB HBM3",
    utilisation_ratio=0.63, vram_total_bytes=85_520_809_984, vram_used_bytes=12_300_000_000,
    power_w=310.0, temperature_c=54.0, clock_mhz=1980.0,
)  # fmt: skip
IDLE = AcceleratorReading(
    vendor="apple", device="AGXAcceleratorG16G", utilisation_ratio=0.0, gtt_used_bytes=351_000_000
)


def readings() -> list[tuple[str, Message]]:
    """Two nodes of which one tells all, the other little; a third tells nothing of its sensors."""
    why = UntoldFigures(source="macos", why="`powermetrics` tells them, to root alone")
    told = {
        NODE: HardwareReading(
            node=NODE, accelerators=(H100,), cpu_temperature_c=61.0, cpu_power_w=85.0,
            measured_at_s=0.0,
        ),
        MINI: HardwareReading(node=MINI, accelerators=(IDLE,), untold=(why,), measured_at_s=0.0),
    }  # fmt: skip
    nodes = [
        NodeReading(
            node=node, memory_total_bytes=100, memory_available_bytes=50, cpu_ratio=0.25,
            load_1m=1.0, disk_total_bytes=100, disk_free_bytes=50, measured_at_s=0.0,
        )
        for node in (NODE, MINI, NodeId("n3"))
    ]  # fmt: skip
    return [
        *((reading_topic("node", one.node), one) for one in nodes),
        *((reading_topic("hardware", node), one) for node, one in told.items()),
    ]


@pytest.fixture(scope="module")
def testbed(browser: Browser) -> Iterator[GatewayTestbed]:
    """A gateway that is told of these nodes each second."""
    with gateway_testbed() as made:
        ended = threading.Event()

        def publish() -> None:
            bus = made.holder.bus
            for topic, reading in readings():
                bus.publish(topic, reading)

        def tell() -> None:
            while not ended.is_set():
                made.do(publish)
                ended.wait(1.0)

        thread = threading.Thread(target=tell)
        thread.start()
        try:
            yield made
        finally:
            ended.set()
            thread.join(20)


def test_cards_tell_load_power_and_temperature_and_name_what_is_unknown(
    browser: Browser, testbed: GatewayTestbed
) -> None:
    with opened(browser, testbed.url) as tab:
        page = tab.open("/#cluster")
        facts = {
            "testbed": (
                "63 % busy · 12.3 GB of 85.5 GB · 310 W · 54 °C · 1,980 MHz",
                "25 % · 85 W · 61 °C",
            ),
            "n2": ("0 % busy · 351 MB · power, temperature unknown", "25 %"),
            "n3": ("unknown", "25 %"),
        }  # fmt: skip
        for name, (gpu, processor) in facts.items():
            card = page.locator(
                ".node-card", has=page.get_by_role("heading", name=name, exact=True)
            )
            facts_of = card.locator("dl > div")
            expect(facts_of.filter(has_text="GPU").locator("dd")).to_have_text(gpu)
            expect(facts_of.filter(has_text="Processor").locator("dd")).to_have_text(processor)
        expect(page.get_by_text("GPU: NVIDIA H100 80GB HBM3")).to_be_visible()
        expect(page.get_by_text("GPU: Apple")).to_be_visible()
        page.get_by_text("Not reported by its sensors").click()
        expect(page.locator(".untold li")).to_have_text("powermetrics tells them, to root alone")
        expect(page.locator(".untold li code")).to_be_visible()
        tab.check()
