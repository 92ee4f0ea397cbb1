"""The inspector shows a replay with its controls."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.inspector.harness import inspector_harness, replayed
from tests.inspector.scenario import run_scenario

NewPage = Callable[..., Page]
PROPOSED = "write_file"
REPLAY = '"system/replay"'


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """The log of a pod that has stopped."""
    with inspector_harness(tmp_path, log=tmp_path / "log") as harness:
        run_scenario(harness)
        harness.stop()
    return tmp_path / "log"


def test_a_replay_is_paused_moved_and_played_again(new_page: NewPage, recording: Path) -> None:
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


# Moves the slider and presses the button, without waiting for anything in between.
MOVE = """([steps, presses]) => {
  const slider = document.getElementById('replay-slider');
  for (const step of steps) {
    slider.value = step;
    slider.dispatchEvent(new Event('input'));
    slider.dispatchEvent(new Event('change'));
  }
  for (let i = 0; i < presses; i += 1) document.getElementById('replay-play').click();
}"""


@pytest.mark.rule("H-13")
def test_no_click_is_lost_while_a_replay_reconnects(new_page: NewPage, recording: Path) -> None:
    with replayed(recording, "--pod", "demo", "--speed", "0.01") as link:
        page = new_page()
        page.goto(link)
        play, slider = page.locator("#replay-play"), page.locator("#replay-slider")
        expect(play).to_have_text("Pause")
        play.click()
        slider.press("End")
        expect(page.locator("#log")).to_contain_text(PROPOSED)
        # Going back closes the connection: what is asked for meanwhile happens all the same.
        for _ in range(4):
            page.evaluate(MOVE, [[300, 0, 1000], 0])
            expect(play).to_have_text("Play again")
            expect(slider).to_have_value("1000")
            expect(page.locator("#log")).to_contain_text(PROPOSED)
            page.evaluate(MOVE, [[500, 0], 0])
            expect(page.locator("#log")).not_to_contain_text(PROPOSED)
            expect(play).to_have_text("Play")
        page.evaluate(MOVE, [[500, 0], 1])
        expect(play).to_have_text("Pause")
        page.evaluate(MOVE, [[0], 3])
        expect(play).to_have_text("Play")
        expect(page.locator("#log .mark")).to_have_count(0)


@pytest.mark.rule("H-13")
def test_the_slider_shows_no_more_than_the_gateway_has_told(
    new_page: NewPage, recording: Path
) -> None:
    with replayed(recording, "--pod", "demo", "--speed", "0.01") as link:
        page = new_page()
        with page.expect_websocket() as opening:
            page.goto(link)
        slider = page.locator("#replay-slider")
        expect(page.locator("#replay-play")).to_have_text("Pause")
        # A page whose clock is a day ahead is not at the end of the recording.
        page.evaluate("() => { const now = Date.now; Date.now = () => now() + 86_400_000; }")
        for _ in range(4):
            shown = int(slider.input_value())
            frame = opening.value.wait_for_event("framereceived", lambda text: REPLAY in text)
            told = json.loads(frame)["payload"]
            span = told["end_time"] - told["start_time"]
            assert shown <= 1 + 1000 * (told["time"] - told["start_time"]) / span
