"""A real browser for tests: the system's Chromium, headless, driven by Playwright.

No browser is ever downloaded. A tab notes what must not happen: a request to another origin, a word
of error in the console, an exception, a report of the page's own policy.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 30_000
WIDE, PHONE = (1440, 900), (390, 844)
"""Sizes of the screen; `test_page.py` looks at every view in both."""
_REPORTS = """
window.reports = [];
addEventListener("securitypolicyviolation", (event) =>
  window.reports.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
"""


class NoBrowser(RuntimeError):
    """There is no Chromium here; the text says how to get one."""


def launched(playwright: Playwright) -> Browser:
    """Return a headless browser. Raises NoBrowser."""
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        raise NoBrowser(f"none of {', '.join(PROGRAMS)} is here (`apt-get install chromium`)")
    return playwright.chromium.launch(
        executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"]
    )


@dataclass
class Tab:
    """A page in a context of its own, and what it did that it must not do."""

    page: Page
    url: str
    errors: list[str] = field(default_factory=list[str])
    asked: list[str] = field(default_factory=list[str])

    def open(self, path: str = "/") -> Page:
        """Go to a path of the server."""
        self.page.goto(self.url + path)
        return self.page

    def view(self, name: str) -> None:
        """Go to a view by its link."""
        self.page.click(f"nav a[href='#{name}']")
        self.page.wait_for_selector(f"main.{name} h1")

    def reports(self) -> list[str]:
        """Return what the policy of the page has reported."""
        return self.page.evaluate("window.reports")

    def check(self) -> None:
        """Fail where something happened that must not."""
        assert self.reports() == []
        assert [url for url in self.asked if not url.startswith(self.url)] == []
        assert self.errors == []


@contextmanager
def opened(
    browser: Browser,
    url: str,
    size: tuple[int, int] = WIDE,
    scheme: Literal["light", "dark"] = "light",
    expects: tuple[str, ...] = (),
) -> Iterator[Tab]:
    """Yield a new tab of this size; what the console says with one of the words `expects` in it is
    no error."""
    context: BrowserContext = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme
    )
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(_REPORTS)
    page = context.new_page()
    tab = Tab(page, url)

    def heard(message: Any) -> None:
        """Note an error or a warning in the console."""
        told = message.type in ("error", "warning")
        if told and not any(word in message.text for word in expects):
            tab.errors.append(message.text)

    page.on("console", heard)
    page.on("pageerror", lambda error: tab.errors.append(str(error)))
    page.on("request", lambda request: tab.asked.append(request.url))
    try:
        yield tab
    finally:
        context.close()


def reach(page: Page, found: Callable[[], bool], what: str, most: int = 40) -> None:
    """Press Tab until the focus is where it is wanted."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if found():
            return
    raise AssertionError(f"the keyboard does not come to {what}")


def focused(page: Page) -> str:
    return page.evaluate(
        "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
    )


def wide(*more: Any) -> Any:
    """A parameter set of a desk's size, which only `make prove` looks at beyond `test_page.py`."""
    return pytest.param(WIDE, *more, id="wide", marks=pytest.mark.proof)


def phone(*more: Any) -> Any:
    """A parameter set of a phone's size."""
    return pytest.param(PHONE, *more, id="phone")


SIZES = [wide(), phone()]
