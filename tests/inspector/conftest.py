"""A real browser, and a page signed in to a pod of its own."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.inspector.stage import BOUND, CHROMIUM_FLAGS, Stage, chromium, staged

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


@pytest.fixture(scope="package")
def theatre(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[Stage]]:
    """One gateway with a pod for each test: starting one takes longer than most tests."""
    with staged(tmp_path_factory.mktemp("theatre"), pods=64) as stage:
        yield (stage.part(number) for number in range(1, 64))


@pytest.fixture
def stage(theatre: Iterator[Stage]) -> Iterator[Stage]:
    """A pod that nobody else uses."""
    stage = next(theatre)
    yield stage
    stage.stop()


@pytest.fixture
def own_stage(tmp_path: Path) -> Iterator[Stage]:
    """A gateway of one's own, to stop and start."""
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


def sign_in(
    page: Page, stage: Stage, participant: str = "ada", *, fragment: str = "", url: str = ""
) -> Page:
    page.goto(f"{url or stage.url}/{fragment}")
    page.fill("#token", stage.token(participant))
    page.press("#token", "Enter")
    expect(page.locator("#status")).to_have_text(f"you are {participant}")
    return page


def press(button: Locator) -> None:
    """Click on what decides, once it has stood still: Playwright would scroll as it waits."""
    button.scroll_into_view_if_needed()
    expect(button).to_be_enabled()
    button.click()


@pytest.fixture
def page(new_page: Callable[..., Page], stage: Stage) -> Page:
    return sign_in(new_page(), stage)
