"""Fixtures: a browser, and pages signed in to a pod of their own."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from playwright.sync_api import Error as PageError
from playwright.sync_api import TimeoutError as PageTimeoutError

from tests.inspector.harness import (
    BOUND,
    CHROMIUM_FLAGS,
    InspectorHarness,
    chromium,
    inspector_harness,
)

expect.set_options(timeout=BOUND * 1000)


# Scoped to the package: while Playwright runs, no other test can run an event loop.
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


@pytest.fixture(scope="package")
def shared_gateway(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Iterator[InspectorHarness]]:
    """One gateway with a pod for each test: starting a gateway takes longer than most tests."""
    with inspector_harness(tmp_path_factory.mktemp("shared_gateway"), pods=64) as harness:
        yield (harness.for_pod(number) for number in range(1, 64))


@pytest.fixture
def harness(shared_gateway: Iterator[InspectorHarness]) -> Iterator[InspectorHarness]:
    """A pod that no other test uses."""
    harness = next(shared_gateway)
    yield harness
    harness.stop()


@pytest.fixture
def own_harness(tmp_path: Path) -> Iterator[InspectorHarness]:
    """A gateway that the test may stop and start."""
    with inspector_harness(tmp_path) as harness:
        yield harness


@pytest.fixture
def problems() -> list[str]:
    """Errors in pages; the test fails if there are any."""
    return []


@pytest.fixture
def new_page(browser: Browser, problems: list[str]) -> Iterator[Callable[..., Page]]:
    """Open pages, each with its own browser profile, and check that they report no errors."""
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


def sign_in(
    page: Page,
    harness: InspectorHarness,
    participant: str = "ada",
    *,
    fragment: str = "",
    url: str = "",
) -> Page:
    page.goto(f"{url or harness.url}/{fragment}")
    if page.locator("#stuck").count():
        # Seen once in some hundred loads on a busy machine: a file of the page did not arrive.
        try:
            page.locator("#stuck").wait_for(state="detached", timeout=BOUND * 500)
        except PageTimeoutError:
            page.reload()
    page.fill("#token", harness.token(participant))
    page.press("#token", "Enter")
    expect(page.locator("#status")).to_have_text(f"Signed in as {participant}")
    return page


def press(button: Locator) -> None:
    """Click a decision button once it is enabled; Playwright's own click would scroll meanwhile."""
    for _ in range(5):
        expect(button).to_be_attached()
        try:
            button.scroll_into_view_if_needed()
        except PageError:  # its row was drawn anew meanwhile
            continue
        break
    expect(button).to_be_enabled()
    button.click()


@pytest.fixture
def page(new_page: Callable[..., Page], harness: InspectorHarness) -> Page:
    return sign_in(new_page(), harness)
