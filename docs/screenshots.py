"""Make the pictures of the inspector in the README: `make screenshots`.

A pod is started on this machine, the scene of the tests is played in it, and Chromium looks.
"""

import sys
import tempfile
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.inspector.scene import play
from tests.inspector.stage import CHROMIUM_FLAGS, chromium, staged

FOLDER = Path(__file__).parent
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")


def main() -> None:
    path = chromium()
    if path is None:
        sys.exit("Chromium is not installed: apt-get install chromium")
    with (
        tempfile.TemporaryDirectory() as folder,
        staged(Path(folder)) as stage,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
        page.add_init_script("localStorage.setItem('mcpp.settings', JSON.stringify({hints: true}))")
        page.goto(stage.url)
        page.fill("#token", stage.token("ada"))
        page.press("#token", "Enter")
        page.locator("#status[data-state=open]").wait_for()
        play(stage)
        page.locator("#log .tone-proposal").wait_for()
        page.locator("#rates-text", has_text="3 contexts").wait_for()
        page.locator("#log").evaluate("log => log.scrollTop -= 390")
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            # The line of rates is drawn once a second, in the colours of then.
            page.evaluate("() => new Promise(done => setTimeout(done, 1200))")
            page.screenshot(path=FOLDER / f"inspector-{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main()
