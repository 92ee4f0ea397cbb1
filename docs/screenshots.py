"""Make the screenshots of the inspector: `make screenshots`.

Starts a local pod, runs the scenario of the tests in it and takes screenshots with Chromium.
"""

import sys
import tempfile
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.inspector.harness import CHROMIUM_FLAGS, chromium, inspector_harness
from tests.inspector.scenario import run_scenario

FOLDER = Path(__file__).parent
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")


def main() -> None:
    path = chromium()
    if path is None:
        sys.exit("Chromium is not installed: apt-get install chromium")
    with (
        tempfile.TemporaryDirectory() as folder,
        inspector_harness(Path(folder)) as harness,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
        page.add_init_script("localStorage.setItem('mcpp.settings', JSON.stringify({hints: true}))")
        page.goto(harness.url)
        page.fill("#token", harness.token("ada"))
        page.press("#token", "Enter")
        page.locator("#status[data-state=open]").wait_for()
        run_scenario(harness)
        page.locator("#log .tone-proposal").wait_for()
        page.locator("#rates-text", has_text="3 contexts").wait_for()
        page.locator("#log").evaluate("log => log.scrollTop -= 390")
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            # The sparkline is redrawn once a second, in the current colours.
            page.evaluate("() => new Promise(done => setTimeout(done, 1200))")
            page.screenshot(path=FOLDER / f"inspector-{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main()
