"""The inspector shows a replay with its controls."""

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.inspector.harness import inspector_harness, replayed
from tests.inspector.scenario import run_scenario

NewPage = Callable[..., Page]
PROPOSED = "write_file"


def test_a_replay_is_paused_moved_and_played_again(new_page: NewPage, tmp_path: Path) -> None:
    recording = tmp_path / "log"
    with inspector_harness(tmp_path, log=recording) as harness:
        run_scenario(harness)
        harness.stop()
    with replayed(recording, "--pod", "demo", "--speed", "0.01") as link:
        page = new_page()
        page.goto(link)
        expect(page.locator("#status")).to_have_text("Signed in as viewer")
        play, slider = page.locator("#replay-play"), page.locator("#replay-slider")
        expect(play).to_have_text("Pause")
        expect(page.locator("#composer")).to_be_hidden()
        expect(page.locator("#replay-speed")).to_have_value("0.01")
        play.click()
        expect(play).to_have_text("Play")
        slider.press("End")
        expect(page.locator("#log")).to_contain_text(PROPOSED)
        expect(page.locator("#proposals")).to_contain_text("Open at this point of the recording")
        # Back: what has not been played again is not shown.
        slider.press("Home")
        expect(page.locator("#log")).not_to_contain_text(PROPOSED)
        expect(page.locator("#log .mark")).to_have_count(0)
        expect(slider).to_have_value("0")
        page.select_option("#replay-speed", "1000")
        page.click("#replay-play")
        expect(page.locator("#log")).to_contain_text(PROPOSED)
        expect(play).to_have_text("Play again")
