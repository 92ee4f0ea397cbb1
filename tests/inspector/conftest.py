"""A real browser, and a page signed in to a pod of its own."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.inspector.stage import BOUND, CHROMIUM_FLAGS, Stage, chromium, staged, token

expect.set_options(timeout=BOUND * 1000)


# For the package, not the session: while Playwright runs, no other test could run an event loop.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None:
        if "CI" in os.environ:
            pytest.fail("CI needs Chromium: apt-get install chromium")
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path) as stage:
        yield stage


@pytest.fixture
def problems() -> list[str]:
    """What went wrong in pages: the test fails if anything did."""
    return []


@pytest.fixture
def new_page(browser: Browser, problems: list[str]) -> Iterator[Callable[..., Page]]:
    """Open pages that must not complain; each has a browser profile of its own."""
    contexts = []

    def make(width: int = 1280, height: int = 800, scheme: str = "light") -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
            accept_downloads=True,
        )
        context.set_default_timeout(BOUND * 1000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console",
            lambda message: (
                problems.append(message.text)
                if "Content Security Policy" in message.text or "Trusted" in message.text
                else None
            ),
        )
        return page

    yield make
    for context in contexts:
        context.close()
    assert problems == []


def sign_in(page: Page, url: str, participant: str = "ada", fragment: str = "") -> Page:
    page.goto(f"{url}/{fragment}")
    page.fill("#token", token(participant))
    page.press("#token", "Enter")
    expect(page.locator("#status")).to_have_text(f"you are {participant}")
    return page


@pytest.fixture
def page(new_page: Callable[..., Page], stage: Stage) -> Page:
    return sign_in(new_page(), stage.url)
