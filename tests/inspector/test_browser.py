"""The inspector in Chromium, against a gateway process."""

import json
import re
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, WebSocket, expect

import mcpp
from mcpp.protocol.cards import card_digest, card_text
from mcpp.protocol.envelope import Context
from mcpp.transient.summaries import summarize
from mcpp_agents.cli.joining import PERSON
from mcpp_gateway.tokens.store import TokenStore
from tests.gateway.ports import free_port
from tests.inspector.conftest import press, sign_in
from tests.inspector.harness import (
    BreakableProxy,
    InspectorClient,
    InspectorHarness,
    breakable_proxy,
    inspector_harness,
    up,
)
from tests.inspector.scenario import run_scenario

NewPage = Callable[..., Page]


@contextmanager
def proxied_harness(folder: Path) -> Iterator[tuple[InspectorHarness, BreakableProxy, str]]:
    """Run a gateway, a proxy in front of it, and return the origin of the page behind the proxy."""
    port = free_port()
    origin = f"http://127.0.0.1:{port}"
    with (
        inspector_harness(folder, origins=(origin,)) as harness,
        breakable_proxy(harness.port, port) as proxy,
    ):
        yield harness, proxy, origin


def submit_arguments(page: Page, arguments: str, problem: str) -> None:
    """Submit invalid arguments in the dialog and expect a problem."""
    page.fill("dialog textarea", arguments)
    page.click("dialog .primary")
    expect(page.locator("dialog .problem")).to_contain_text(problem)


# --- sign-in --------------------------------------------------------------------------------------


def test_a_wrong_token_is_refused_and_a_right_one_signs_in(
    new_page: NewPage, harness: InspectorHarness
) -> None:
    page = new_page()
    page.goto(harness.url)
    page.fill("#token", "wrong")
    page.press("#token", "Enter")
    expect(page.locator("#sign-in-problem")).to_have_text(
        "The gateway does not recognize this token."
    )
    page.fill("#token", harness.token("ada"))
    page.press("#token", "Enter")
    expect(page.locator("#status")).to_have_text("Signed in as ada")
    assert harness.token("ada") not in page.url
    page.reload()
    expect(page.locator("#status")).to_have_text("Signed in as ada")
    assert page.evaluate("Object.values(localStorage).join()").find(harness.token("ada")) == -1


@pytest.mark.rule("S-06")
def test_a_token_for_several_pods_signs_in_to_the_pod_of_the_address(
    new_page: NewPage, tmp_path: Path
) -> None:
    more = f'[tokens]\npath = "{tmp_path / "tokens"}"'
    with inspector_harness(tmp_path, pods=2, more=more) as harness:
        now = time.time()
        store = TokenStore(tmp_path / "tokens")
        token = store.sign("eve", ["demo", "demo1"], {}, now=now, expires=now + 600)
        page = new_page()
        for address, shown in (("", "add pod="), ("/?pod=demo1", "")):
            page.goto(harness.url + address)
            page.fill("#token", token)
            page.press("#token", "Enter")
            if shown:
                expect(page.locator("#sign-in-problem")).to_contain_text(shown)
        expect(page.locator("#status")).to_have_text("Signed in as eve")
        assert page.url.startswith(f"{harness.url}/?pod=demo1")
        second = harness.for_pod(1)
        second.join("ada").send("chat", {"text": "hello in the second pod"})
        second.stop()
        expect(page.locator("#log")).to_contain_text("hello in the second pod")
        page.reload()
        expect(page.locator("#status")).to_have_text("Signed in as eve")


def test_signing_out_forgets_the_token(page: Page) -> None:
    page.click("#settings-button")
    page.click("text=Sign out")
    expect(page.locator("#token")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


@pytest.fixture
def link(tmp_path: Path) -> Iterator[str]:
    """Run `mcpp up` and return the link that it prints."""
    with up(tmp_path) as link:
        yield link


@pytest.mark.rule("G-60")
def test_the_link_of_up_signs_in_once_and_is_removed_from_the_address(
    new_page: NewPage, link: str
) -> None:
    page = new_page()
    page.goto(link)
    expect(page.locator("#status")).to_have_attribute("data-state", "open")
    assert page.url == link.partition("#")[0]
    page.reload()
    expect(page.locator("#status")).to_have_attribute("data-state", "open")
    late = new_page()
    late.goto(link)
    expect(late.locator("#sign-in-problem")).to_contain_text("This link has already been used")
    assert late.url == link.partition("#")[0]


@pytest.mark.rule("G-60")
def test_a_link_opened_on_the_loaded_page_signs_in_and_is_removed_from_the_address(
    new_page: NewPage, link: str
) -> None:
    page = new_page()
    page.goto(link.partition("#")[0])
    expect(page.locator("#token")).to_be_visible()
    page.evaluate("link => { location.href = link; }", link)
    expect(page.locator("#status")).to_have_attribute("data-state", "open")
    assert page.url == link.partition("#")[0]


def test_a_replaced_connection_can_be_restored(
    new_page: NewPage, harness: InspectorHarness
) -> None:
    page = sign_in(new_page(), harness, "guest")
    sign_in(new_page(), harness, "guest")
    expect(page.locator("#status")).to_contain_text("Closed: ")
    harness.join("analyst").chat("meanwhile")
    page.click("text=Reconnect")
    expect(page.locator("#log")).to_contain_text("meanwhile")
    expect(page.locator("text=Reconnect")).to_be_hidden()


@pytest.mark.rule("G-37")
def test_revoking_a_token_removes_the_displayed_messages(
    new_page: NewPage, own_harness: InspectorHarness
) -> None:
    page = sign_in(new_page(), own_harness)
    own_harness.join("analyst").chat("for members only")
    expect(page.locator("#log")).to_contain_text("for members only")
    own_harness.revoke("ada")
    expect(page.locator("#sign-in-problem")).to_have_text("This token was revoked.")
    expect(page.locator("body")).not_to_contain_text("for members only")
    assert page.evaluate("sessionStorage.length") == 0


def test_a_page_whose_scripts_are_refused_shows_a_hint(
    new_page: NewPage, harness: InspectorHarness
) -> None:
    port = free_port()
    with breakable_proxy(harness.port, port):
        page = new_page()
        page.goto(f"http://127.0.0.1:{port}")
        stuck = page.locator("#stuck")
        expect(stuck).to_contain_text("allowed_origins")
        # It is delayed, so that it does not flash while the page loads.
        stuck.evaluate("one => one.getAnimations().forEach(wait => wait.finish())")
        expect(stuck).to_be_visible()


def test_a_link_with_an_invalid_filter_shows_an_error(
    new_page: NewPage, harness: InspectorHarness
) -> None:
    page = sign_in(new_page(), harness, fragment="#filter=main+or+whatever")
    expect(page.locator("#filter-problem")).to_contain_text("Unknown word “whatever”")
    expect(page.locator("#filter")).to_have_value("main or whatever")


# --- log and tree ---------------------------------------------------------------------------------


def test_messages_are_displayed_by_kind(page: Page, harness: InspectorHarness) -> None:
    analyst, crm = harness.join("analyst"), harness.join("crm")
    analyst.chat("good morning")
    call = analyst.ask("search", {"page": 1}, "crm")
    crm.answer(call, "search", {"content": [{"type": "text", "text": "nine records"}]})
    analyst.think("nine is few", Context(id="k", type="reasoning"))
    log = page.locator("#log")
    expect(log.locator(".tone-chat .text")).to_have_text("good morning")
    expect(log.locator(".tone-chat time")).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    expect(log.locator(".tone-call .name")).to_have_text("search")
    expect(log.locator(".tone-call .json")).to_contain_text('"page": 1')
    expect(log.locator(".tone-result .text")).to_have_text("nine records")
    expect(log.locator(".tone-thought .text")).to_have_css("font-style", "italic")
    raw = log.locator(".tone-chat .raw-button")
    raw.click()
    expect(log.locator(".tone-chat .raw")).to_contain_text('"protocol": "mcpp/v0.1"')
    raw.click()
    expect(log.locator(".raw")).to_have_count(0)


# Returns the largest difference of a colour value between two PNGs. The anti-aliasing of rounded
# corners varies by one from frame to frame, so screenshots are not always equal byte for byte.
LARGEST_DIFFERENCE = """async texts => {
  const pixels = async text => {
    const bytes = Uint8Array.from(atob(text), character => character.charCodeAt(0));
    const image = await createImageBitmap(new Blob([bytes], {type: 'image/png'}));
    const context = new OffscreenCanvas(image.width, image.height).getContext('2d');
    context.drawImage(image, 0, 0);
    return context.getImageData(0, 0, image.width, image.height).data;
  };
  const [one, other] = await Promise.all(texts.map(pixels));
  if (one.length !== other.length) return 255;
  return one.reduce((largest, value, i) => Math.max(largest, Math.abs(value - other[i])), 0);
}"""


def test_stacked_characters_do_not_cover_other_messages(
    page: Page, harness: InspectorHarness
) -> None:
    analyst, crm = harness.join("analyst"), harness.join("crm")
    asked = analyst.propose("write_file", {"path": "a.csv"}, "files")
    analyst.chat("an honest word")
    expect(page.locator("#proposals").get_by_text("Approve")).to_be_enabled()
    honest = [page.locator("#log .tone-chat .text").first, page.locator("#proposals .decision")]
    before = [one.screenshot() for one in honest]
    stacked = "".join(
        letter + "".join(chr(0x300 + n % 0x60) for n in range(60)) for letter in "OVERWRITE" * 3
    )
    crm.chat(stacked)
    crm.send("mcp/reject", {"reason": stacked}, about=asked)
    expect(page.locator("#log .tone-reject")).to_be_visible()
    expect(page.locator("#proposals")).to_contain_text("Rejected by crm")
    expect(page.locator("#proposals").get_by_text("Approve")).to_be_enabled()
    after = [one.screenshot() for one in honest]
    for pair in zip(before, after, strict=True):
        texts = [b64encode(image).decode() for image in pair]
        assert page.evaluate(LARGEST_DIFFERENCE, texts) <= 2


def test_the_tree_shows_contexts_and_selects_them(page: Page, harness: InspectorHarness) -> None:
    run_scenario(harness)
    tree = page.locator("#tree")
    workflow = tree.locator(".tree-item", has_text="review-2031")
    reasoning = tree.locator(".tree-item", has_text="reason-789")
    expect(workflow).to_contain_text("open")
    expect(workflow).to_contain_text("analyst, crm")
    expect(workflow).to_have_attribute("aria-level", "1")
    expect(reasoning).to_have_attribute("aria-level", "2")
    expect(reasoning.locator(".count")).to_have_text("3")
    expect(reasoning).to_contain_text("concluded")
    reasoning.click()
    expect(page.locator("#log .row")).to_have_count(3)
    expect(page.locator("#selection")).to_contain_text("reasoning reason-789")
    workflow.click()
    expect(page.locator("#log .row.fold")).to_contain_text("Count them once")
    page.uncheck("#descendants")
    expect(page.locator("#log .row.fold")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(page.locator("#selection")).to_be_hidden()


@pytest.mark.rule("C-22")
def test_tokens_are_shown_per_context_and_agent(page: Page, harness: InspectorHarness) -> None:
    run_scenario(harness)
    analyst = harness.join("analyst")
    for number, model in ((1, "small"), (2, "large")):
        context = Context(id=f"count-{number}", type="reasoning", parent="review-2031")
        usage = {"input_tokens": 1200 * number, "output_tokens": 60, "cached_tokens": 800}
        payload = {"text": "counted", "usage": usage | {"model": model}}
        analyst.send("conclusion", payload, context=context)
    review = page.locator("#tree .tree-item", has_text="review-2031")
    expect(review.locator(".tree-tokens")).to_have_text("3.7k tokens")
    expect(review.locator(".tree-tokens")).to_have_attribute(
        "title", "Tokens: 3,600 in (1,600 cached), 120 out, with the contexts below"
    )
    counted = page.locator("#tree .tree-item", has_text="count-2")
    expect(counted.locator(".tree-tokens")).to_have_text("2.5k tokens")
    person = page.locator("#participants .person", has=page.get_by_text("analyst", exact=True))
    expect(person.locator(".tokens")).to_have_text("3.7k tokens")
    person.locator("summary").click()
    rows = person.locator(".tokens-by-model li")
    expect(rows).to_have_text(
        ["small 1,200 in (800 cached), 60 out", "large 2,400 in (800 cached), 60 out"]
    )
    others = page.locator("#participants .person", has=page.get_by_text("crm", exact=True))
    expect(others.locator(".tokens")).to_have_count(0)


@pytest.mark.rule("C-22")
def test_tokens_of_an_agent_that_left_before_the_page_came_are_shown(
    page: Page, harness: InspectorHarness
) -> None:
    agent = harness.join("analyst")
    for name, usage in (("count", {"input_tokens": 1200, "model": "m"}), ("free", {})):
        payload = {"text": "counted", "usage": usage}
        agent.send("conclusion", payload, context=Context(id=name, type="reasoning"))
    agent.leave()
    person = page.locator("#participants .person", has=page.get_by_text("analyst", exact=True))
    expect(person.locator(".end")).to_have_text("offline")
    page.reload()
    expect(person.locator(".tokens")).to_have_text("1.2k tokens")
    expect(person.locator(".end")).to_have_text("offline")
    person.locator("summary").click()
    expect(person.locator(".tokens-by-model li")).to_have_text(["m 1,200 in, 0 out"])
    expect(person).not_to_contain_text("capabilities")
    expect(page.locator("#participants-count")).to_have_text("1")


def test_a_concluded_context_is_one_row_that_unfolds(page: Page, harness: InspectorHarness) -> None:
    files = harness.join("files")
    files.think("is there a backup?", Context(id="check", type="task"))
    expect(page.locator("#log .tone-thought")).to_have_count(1)
    files.conclude("yes, from today", "check")
    fold = page.locator("#log .row.fold")
    expect(fold).to_contain_text("yes, from today")
    expect(fold.locator(".who")).to_have_text("files")
    expect(page.locator("#log .tone-thought")).to_have_count(0)
    expect(fold.locator(".badge")).to_have_count(0)
    files.ask("delete", {"path": "/"}, "crm", context="check")
    files.chat("please read", context="check", to="ada")
    expect(fold.locator(".badge")).to_have_text(["2 newer", "1 to you"])
    fold.locator("button.twisty").click()
    expect(page.locator("#log .tone-thought")).to_have_count(1)


def test_a_call_links_to_its_response_even_if_hidden(page: Page, harness: InspectorHarness) -> None:
    analyst, crm = harness.join("analyst"), harness.join("crm")
    call = analyst.ask("search", {}, "crm", context=Context(id="k", type="task"))
    crm.answer(call, "search", {"content": [{"type": "text", "text": "nine records"}]})
    page.locator("#tree .tree-item", has_text="task").click()
    expect(page.locator("#log")).not_to_contain_text("nine records")
    page.click("#log .tone-call [title='Show the response']")
    expect(page.locator("#log .tone-result:focus")).to_contain_text("nine records")
    page.fill("#filter", "kind:mcp/response:*")
    page.press("#filter", "Enter")
    expect(page.locator("#log .tone-call")).to_have_count(0)
    page.fill("#search", "nine")
    page.click("#log .tone-result [title='Show the call']")
    expect(page.locator("#log .tone-call:focus")).to_contain_text("search")
    expect(page.locator("[data-strategy=everything][aria-pressed=true]")).to_have_count(1)


def test_an_answer_links_to_what_it_answers(page: Page, harness: InspectorHarness) -> None:
    analyst = harness.join("analyst")
    analyst.think("Is this safe?", Context(id="reason-789", type="reasoning"))
    analyst.conclude("No: deny it.", "reason-789")
    denial = {"jsonrpc": "2.0", "id": "1", "error": {"code": 1, "message": "Operation denied"}}
    analyst.send("mcp/response:tools/call", denial, about="reason-789")
    row = page.locator("#log .row", has_text="Operation denied")
    row.get_by_text("on reasoning reason-789").click()
    expect(page.locator("#selection")).to_contain_text("Showing only reasoning reason-789")
    expect(page.locator("#log .row")).to_have_count(2)
    page.keyboard.press("Escape")
    asked = analyst.propose("write_file", {}, "files", context="reason-789")
    harness.join("crm").send("mcp/reject", {"reason": "too late"}, about=asked)
    page.locator("#log .tone-reject").get_by_text("on analyst: write_file").click()
    expect(page.locator("#log .tone-proposal")).to_be_focused()


def test_an_expired_context_is_shown_as_such(new_page: NewPage, tmp_path: Path) -> None:
    with inspector_harness(tmp_path, context_idle_seconds=0.2) as harness:
        page = sign_in(new_page(), harness)
        files = harness.join("files")
        files.think("hm", Context(id="brief", type="task"))
        files.conclude("yes", Context(id="check", type="review"))
        states = page.locator("#tree .tree-state")
        expect(states).to_have_text(["concluded, expired", "expired"])
        expect(page.locator("#log .row.fold")).to_contain_text(re.compile("yes.*expired"))
        page.click("text=Timeline")
        expect(page.locator("#timeline .bar-row .visually-hidden")).to_have_text(
            ["expired", "concluded, expired"]
        )


def test_a_message_to_an_expired_context_is_sent_to_it(new_page: NewPage, tmp_path: Path) -> None:
    with inspector_harness(tmp_path, context_idle_seconds=0.2) as harness:
        page = sign_in(new_page(), harness)
        files = harness.join("files")
        files.think("hm", Context(id="brief", type="task"))
        item = page.locator("#tree .tree-item", has_text="expired")
        item.click()
        note = page.locator("#composer-problem")
        expect(note).to_have_text("This context has expired. A message revives it.")
        page.fill("#composer-text", "still here?")
        page.press("#composer-text", "Enter")
        assert files.receive_kind("chat")["context"] == {"id": "brief", "type": "task"}
        expect(page.locator("#log .row")).to_have_count(2)
        expect(page.locator("#log .row").last).to_contain_text("still here?")
        # Even if a filter hides all of that context.
        files.think("hm", Context(id="hidden", type="task"))
        page.locator("#tree .tree-item", has_text=re.compile("hidden.*expired")).click()
        page.fill("#composer-text", "and here?")
        for strategy in ("main", "conclusions"):
            page.click(f"[data-strategy={strategy}]")
            pressed = page.locator("#strategies [aria-pressed=true]")
            expect(pressed).to_have_attribute("data-strategy", strategy)
        expect(page.locator("#selection")).to_contain_text("Showing only task hidden")
        page.press("#composer-text", "Enter")
        assert files.receive_kind("chat")["context"] == {"id": "hidden", "type": "task"}


def test_a_draft_keeps_its_destination_when_another_context_is_selected(
    page: Page, harness: InspectorHarness
) -> None:
    analyst, note = harness.join("analyst"), page.locator("#composer-problem")
    for id in ("older", "newer"):
        analyst.think("hm", Context(id=id, type="task"))
    analyst.conclude("done", "older")
    places = page.locator("#composer-context option")
    expect(places).to_have_text(["the main context", "task newer", "task older, concluded"])
    page.fill("#composer-text", "for everybody")
    page.locator("#tree .tree-item", has_text="newer").click()
    expect(page.locator("#composer-context")).to_have_value("")
    expect(note).to_have_text("This goes to the main context, not to the selected context.")
    page.fill("#composer-text", "")
    page.locator("#tree .tree-item", has_text="newer").click()
    expect(page.locator("#composer-context")).to_have_value("newer")
    page.fill("#composer-text", "for this one")
    page.click("#tree .tree-item >> nth=1")
    expect(note).to_have_text("This goes to task newer, not to the selected context.")


def test_the_list_of_destinations_does_not_change_while_it_has_the_focus(
    page: Page, harness: InspectorHarness
) -> None:
    analyst, places = harness.join("analyst"), page.locator("#composer-context option")
    analyst.think("hm", Context(id="first", type="task"))
    expect(places).to_have_count(2)
    page.focus("#composer-context")
    analyst.think("hm", Context(id="second", type="task"))
    expect(page.locator("#composer-to option")).to_have_count(2)
    expect(page.locator("#tree")).to_contain_text("second")
    expect(places).to_have_count(2)
    page.focus("#composer-text")
    expect(places).to_have_count(3)


def test_the_log_stays_at_its_end_when_its_height_changes(
    page: Page, harness: InspectorHarness
) -> None:
    analyst = harness.join("analyst")
    for number in range(30):
        analyst.chat(f"word {number}.")
    expect(page.locator("#log")).to_contain_text("word 29.")
    # The scroll event is late: the content may have changed by then.
    page.locator("#log").evaluate(
        "log => { log.style.maxHeight = '200px'; log.dispatchEvent(new Event('scroll')); }"
    )
    analyst.chat("the last word")
    expect(page.locator("#log")).to_contain_text("the last word")
    expect(page.locator("#follow")).to_be_hidden()
    page.locator("#log").evaluate("log => log.scrollTop -= 100")
    expect(page.locator("#follow")).to_be_visible()


def test_the_state_of_a_filtered_context_is_unknown(page: Page, harness: InspectorHarness) -> None:
    files = harness.join("files")
    files.think("hm", Context(id="k", type="task"))
    item = page.locator("#tree .tree-item", has_text="task")
    expect(item).to_contain_text("open")
    page.click("[data-strategy=main]")
    expect(item.locator(".tree-state")).to_have_text("unknown")
    files.conclude("done", "k")
    page.reload()
    expect(item.locator(".tree-second")).to_have_text("unknownno messages loaded")
    page.click("#strategies >> text=Everything")
    expect(item.locator(".tree-state")).to_have_text("concluded")


# --- filters --------------------------------------------------------------------------------------


def received_frames(page: Page) -> list[str]:
    """Return a list that collects the frames that the page receives from now on."""
    frames: list[str] = []
    page.on(
        "websocket",
        lambda socket: socket.on("framereceived", lambda frame: frames.append(str(frame))),
    )
    return frames


def test_a_strategy_is_one_click_and_the_gateway_applies_it(
    new_page: NewPage, harness: InspectorHarness
) -> None:
    page = new_page()
    frames = received_frames(page)
    sign_in(page, harness)
    analyst = harness.join("analyst")
    analyst.think("first thought", Context(id="k", type="reasoning"))
    expect(page.locator("#log")).to_contain_text("first thought")
    page.click("text=Main only")
    expect(page.locator("[data-strategy=main]")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#log")).not_to_contain_text("first thought")
    expect(page.locator("#filter")).to_have_value("main")
    analyst.think("second thought", "k")
    analyst.chat("in the open")
    expect(page.locator("#log")).to_contain_text("in the open")
    assert not any("second thought" in frame for frame in frames)
    # What was not sent is fetched when the filter is widened.
    page.click("#strategies >> text=Everything")
    expect(page.locator("#log")).to_contain_text("second thought")
    analyst.conclude("done thinking", "k")
    page.click("text=Conclusions")
    expect(page.locator("[data-strategy=conclusions]")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#log")).to_contain_text("done thinking")
    expect(page.locator("#log")).not_to_contain_text("in the open")
    page.click("[data-strategy=types]")
    page.check(".popover input[value=reasoning]")
    expect(page.locator("#filter")).to_have_value("main or type:reasoning")
    expect(page.locator("#log")).to_contain_text("in the open")
    page.click(".popover >> text=Close")
    page.locator("#tree .tree-item", has_text="reasoning").click()
    page.click("text=This context")
    expect(page.locator("#filter")).to_have_value("context:k+")


def test_the_last_of_two_quick_filter_changes_wins(page: Page, harness: InspectorHarness) -> None:
    analyst = harness.join("analyst")
    analyst.chat("in the open")
    analyst.conclude("thought through", Context(id="k"))
    page.click("[data-strategy=main]")
    expect(page.locator("#filter")).to_have_value("main")
    # The first reloads the history, which has not finished at the second click.
    page.evaluate(
        """for (const name of ['everything', 'conclusions']) {
          document.querySelector(`[data-strategy=${name}]`).click();
        }"""
    )
    expect(page.locator("#log")).to_contain_text("thought through")
    expect(page.locator("#log")).not_to_contain_text("in the open")
    expect(page.locator("[data-strategy=conclusions]")).to_have_attribute("aria-pressed", "true")


def test_expressions_are_completed_and_errors_explained(
    page: Page, harness: InspectorHarness
) -> None:
    harness.join("analyst").chat("hello")
    harness.join("crm").chat("hello too")
    expect(page.locator("#log .tone-chat")).to_have_count(2)
    page.locator("#filter").press_sequentially("not fr")
    expect(page.locator("#filter-options li")).to_have_text(["from:"])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator("#filter").press_sequentially("c")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#filter")).to_have_value("not from:crm ")
    page.keyboard.press("Enter")
    expect(page.locator("#log .tone-chat")).to_have_count(1)
    page.fill("#filter", "main and whatever")
    expect(page.locator("#filter-problem")).to_contain_text("Unknown word “whatever”")
    expect(page.locator("#filter-problem")).to_contain_text("At character 10: ")
    page.fill("#filter", "main and kin")
    expect(page.locator("#filter-problem")).to_be_hidden()
    page.press("#filter", "Enter")
    expect(page.locator("#filter-problem")).to_contain_text("Unknown word “kin”")
    expect(page.locator("#filter-options")).to_be_hidden()
    # A draft stays until it is applied or discarded.
    page.fill("#filter", "kind:chat")
    page.locator("#filter").blur()
    harness.join("files")
    expect(page.locator("#participants-count")).to_have_text("4")
    expect(page.locator("#filter")).to_have_value("kind:chat")
    page.press("#filter", "Escape")
    page.press("#filter", "Escape")
    expect(page.locator("#filter")).to_have_value("not from:crm")


# --- transient results ----------------------------------------------------------------------------


def test_a_consumed_result_is_an_accordion_with_its_original_inside(
    page: Page, harness: InspectorHarness
) -> None:
    run_scenario(harness)
    accordion = page.locator("#log .accordion")
    expect(accordion).to_have_count(1)
    expect(accordion).to_contain_text("15 activity records (page 1/9, IDs: 72, 73, 74…)")
    expect(page.locator("#log .badge")).to_have_count(0)
    expect(accordion).not_to_contain_text("#72")
    accordion.locator("button").first.click()
    expect(accordion.locator(".original")).to_contain_text("#72  2026-11-01")
    assert accordion.locator("input, textarea, [contenteditable]").count() == 0
    page.click("#settings-button")
    page.check("text=Show context hints")
    page.click("dialog >> text=Close")
    expect(page.locator("#log .badge-collapsed")).to_have_count(1)
    expect(page.locator("#log .badge-consumed")).to_have_count(1)
    expect(page.locator("#log .badge-transient")).to_have_count(1)


# Runs in the browser: Node does not support keeping the digits of a number yet.
SUMMARIZE = """async texts => {
  const {parseExactly} = await import('/inspector/state/json.js');
  const {summarize} = await import('/inspector/state/results/summaries.js');
  return texts.map(text => summarize(parseExactly(text)));
}"""


def test_ids_in_a_summary_have_the_same_digits_as_in_the_sdk(page: Page) -> None:
    long = 1234567890123456789
    values: list[Any] = [
        {"records": [{"id": long}, {"id": long + 1}]},
        {"rows": [{"id": -long}, long, {"id": 10**30, "name": "x"}], "page": long, "pages": 7},
        [{"id": 1e30, "key": 2**53}, {"id": 5, "key": 2**53 + 1}],
        [long],
        {"pagination": long, "items": [{"id": 1}]},
    ]
    results = [{"content": [{"type": "text", "text": json.dumps(value)}]} for value in values]
    results += [{"content": [], "structuredContent": value} for value in values]
    texts = [json.dumps(result) for result in results]
    assert page.evaluate(SUMMARIZE, texts) == [summarize(json.loads(text)) for text in texts]


# --- sending and deciding -------------------------------------------------------------------------


def test_a_message_is_sent_to_the_main_context_or_another(
    page: Page, harness: InspectorHarness
) -> None:
    analyst = harness.join("analyst")
    analyst.think("hm", Context(id="k", type="reasoning"))
    expect(page.locator("#tree")).to_contain_text("reasoning")
    page.fill("#composer-text", "hello, all")
    page.keyboard.press("Enter")
    received = analyst.receive_kind("chat")
    assert (received["from"], received["payload"]) == ("ada", {"text": "hello, all"})
    assert "context" not in received
    page.locator("#tree .tree-item", has_text="reasoning").click()
    expect(page.locator("#composer-context")).to_have_value("k")
    page.select_option("#composer-to", "analyst")
    page.fill("#composer-text", "are you sure?")
    page.click("text=Send")
    received = analyst.receive_kind("chat")
    assert received["context"]["id"] == "k"
    assert received["to"] == ["analyst"]
    expect(page.locator("#log .tone-chat")).to_have_text(re.compile("are you sure?"))


def test_a_message_keeps_its_destination_across_a_restart(
    new_page: NewPage, own_harness: InspectorHarness
) -> None:
    page = sign_in(new_page(), own_harness)
    own_harness.join("crm").think("hm", Context(id="k", type="task"))
    page.select_option("#composer-context", "k")
    page.select_option("#composer-to", "crm")
    page.fill("#composer-text", "for crm, in k")
    own_harness.stop()
    own_harness.start()
    expect(page.locator("#composer-context")).to_contain_text("task k, expired")
    expect(page.locator("#composer-to")).to_contain_text("crm (offline)")
    page.press("#composer-text", "Escape")
    page.locator("#log").press("Escape")
    analyst = own_harness.join("analyst")
    page.press("#composer-text", "Enter")
    received = analyst.receive_kind("chat")
    assert (received["to"], received["context"]["id"]) == (["crm"], "k")


@pytest.mark.rule("P-20")
def test_a_proposal_is_approved_edited_and_rejected(page: Page, harness: InspectorHarness) -> None:
    analyst, files = harness.join("analyst"), harness.join("files")
    for path in ("a.csv", "b.csv", "c.csv"):
        analyst.propose("write_file", {"path": path}, "files", context=Context(id="w"))
    rows = page.locator("#log .tone-proposal")
    expect(rows).to_have_count(3)
    expect(page.locator("#proposals-count")).to_have_text("3")
    expect(page.get_by_role("article", name="analyst proposes write_file")).to_have_count(3)
    expect(page).to_have_title(f"(3) {harness.pod} · MCPP inspector")
    press(rows.nth(0).locator("text=Approve"))
    request = files.receive_kind("mcp/request")
    assert request["kind"] == "mcp/request:tools/call:write_file"
    assert request["payload"]["params"] == {"name": "write_file", "arguments": {"path": "a.csv"}}
    assert request["payload"]["id"] == request["id"]
    assert (request["to"], request["context"]) == (["files"], {"id": "w"})
    expect(rows.nth(0)).to_contain_text("Approved by ada")

    press(rows.nth(1).locator("text=Edit"))
    expect(page.get_by_role("dialog", name="Edit the arguments of write_file")).to_be_visible()
    submit_arguments(page, "{", "Invalid JSON")
    submit_arguments(page, "[1, 2]", "The arguments must be a JSON object")
    page.fill("dialog textarea", '{"path": "other.csv"}')
    page.click("dialog >> text=Send request")
    request = files.receive_kind("mcp/request")
    assert request["payload"]["params"]["arguments"] == {"path": "other.csv"}
    assert "correlation_id" not in request

    press(rows.nth(2).locator("text=Reject"))
    page.fill("dialog input", "not before the backup")
    page.click("dialog .primary")
    objection = files.receive_kind("mcp/reject")
    assert objection["payload"]["reason"] == "edited"
    objection = files.receive_kind("mcp/reject")
    assert objection["payload"] == {"reason": "not before the backup"}
    assert objection["to"] == ["analyst"]
    expect(rows.nth(1)).to_contain_text("Rejected by you: edited")
    expect(rows.nth(2)).to_contain_text("Rejected by you: not before the backup")
    expect(page.locator("#log .proposal button")).to_have_count(0)
    expect(page.locator("#proposals-count")).to_have_text("")


@pytest.mark.rule("P-20")
def test_editing_changes_only_the_arguments_which_may_be_absent(
    page: Page, harness: InspectorHarness
) -> None:
    analyst, files = harness.join("analyst"), harness.join("files")
    rows = page.locator("#log .tone-proposal")
    for number, more in enumerate(({}, {"arguments": None, "_meta": {"a": 1}})):
        params = {"name": "write_file", **more}
        payload = {"method": "tools/call", "params": params}
        analyst.send("mcp/proposal:tools/call:write_file", payload, to="files")
        press(rows.nth(number).get_by_text("Edit"))
        expect(page.locator("dialog textarea")).to_have_value("{}")
        page.fill("dialog textarea", '{"path": "b.csv"}')
        page.click("dialog .primary")
        sent = files.receive_kind("mcp/request")["payload"]["params"]
        assert sent == params | {"arguments": {"path": "b.csv"}}
    payload = {"method": "resources/read", "params": {"uri": "file:///a"}}
    analyst.send("mcp/proposal:resources/read", payload, to="files")
    press(rows.nth(2).get_by_text("Edit"))
    page.fill("dialog textarea", '{"uri": "file:///b"}')
    page.click("dialog .primary")
    assert files.receive_kind("mcp/request")["payload"]["params"] == {"uri": "file:///b"}


@pytest.mark.rule("P-20")
def test_no_rejection_follows_an_edited_request_that_was_refused(
    new_page: NewPage, harness: InspectorHarness
) -> None:
    page = sign_in(new_page(), harness, "critic")
    analyst = harness.join("analyst")
    analyst.propose("write_file", {"path": "a.csv"}, "files")
    card = page.locator("#proposals .card")
    press(card.get_by_text("Edit"))
    page.fill("dialog textarea", '{"path": "b.csv"}')
    page.click("dialog .primary")
    for where in (card, page.locator("#log .tone-proposal")):
        expect(where).to_contain_text("Your decision was refused")
        expect(where.get_by_text("Edit")).to_be_visible()
    press(card.get_by_text("Reject"))
    page.fill("dialog input", "not today")
    page.click("dialog .primary")
    assert analyst.receive_kind("mcp/")["payload"] == {"reason": "not today"}


@pytest.mark.rule("P-20")
def test_an_approval_sends_exactly_the_proposal_once(page: Page, harness: InspectorHarness) -> None:
    analyst, files = harness.join("analyst"), harness.join("files")
    arguments = {"id": 1234567890123456789, "rows": ["one"] * 40 + ["the last row"]}
    analyst.propose("delete_rows", arguments, "files")
    row = page.locator("#log .tone-proposal")
    expect(row.locator(".json")).to_contain_text("1234567890123456789")
    expect(row.locator(".json")).to_contain_text("the last row")
    row.get_by_text("Approve").evaluate("button => { button.click(); button.click(); }")
    assert files.receive_kind("mcp/request")["payload"]["params"]["arguments"] == arguments
    expect(row).to_contain_text("Approved by ada")
    page.fill("#composer-text", "done")
    page.press("#composer-text", "Enter")
    assert files.receive_kind("")["kind"] == "chat"


@pytest.mark.rule("P-20")
def test_a_proposal_decided_by_another_cannot_be_decided_again(
    new_page: NewPage, harness: InspectorHarness
) -> None:
    page, other = sign_in(new_page(), harness), sign_in(new_page(), harness, "crm")
    harness.join("analyst").propose("write_file", {"path": "a.csv"}, "files")
    press(page.locator("#proposals").get_by_text("Edit"))
    press(other.locator("#proposals").get_by_text("Approve"))
    expect(page.locator("#log .tone-proposal")).to_contain_text("Approved by crm")
    submit_arguments(page, '{"path": 1, "path": 2}', "A key occurs twice")
    submit_arguments(page, '{"path": 1}', "Already decided: Approved by crm")
    page.click("dialog >> text=Cancel")
    # The button is gone, but the page keeps a focus.
    expect(page.locator(":focus")).to_have_count(1)


def test_proposals_do_not_move_under_the_pointer(page: Page, harness: InspectorHarness) -> None:
    analyst = harness.join("analyst")
    first, *_ = [analyst.propose(name, {}, "files") for name in ("first", "second")]
    cards = page.locator("#proposals .card")
    expect(cards.locator(".name")).to_have_text(["first", "second"])
    approve = cards.nth(1).get_by_text("Approve")
    approve.hover()
    before = approve.bounding_box()
    analyst.propose("third", {}, "files")
    analyst.send("mcp/withdraw", {}, to="files", about=first)
    expect(cards.nth(0)).to_contain_text("Withdrawn")
    expect(cards.nth(0).locator("button")).to_have_count(0)
    expect(cards.locator(".name")).to_have_text(["first", "second", "third"])
    assert approve.bounding_box() == before
    press(approve)
    expect(cards.nth(1)).to_contain_text("Approved by ada")
    page.hover("#pod-name")
    expect(cards.locator(".name")).to_have_text(["third"])


# Clicks the button that moves to the position of a decision button, as soon as it is there. Returns
# when the decision button itself has come to rest.
PRESS_MOVED_BUTTON = """async button => {
  const place = () => button.getBoundingClientRect();
  const frame = () => new Promise(requestAnimationFrame);
  for (let still = 0, y = NaN; still < 10; await frame()) {
    still = place().y === y ? still + 1 : 0;
    y = place().y;
  }
  const {x, y} = place();
  const about = one => one.closest('.decision').dataset.about;
  const before = about(button);
  delete document.body.dataset.pressed;
  requestAnimationFrame(function look() {
    const there = document.elementFromPoint(x + 5, y + 5)?.closest('.decision button');
    if (!there || about(there) === before) return requestAnimationFrame(look);
    there.dispatchEvent(new MouseEvent('click', {bubbles: true, detail: 1}));
    document.body.dataset.pressed = about(there);
  });
}"""


def test_a_touch_on_a_button_that_has_just_moved_is_ignored(
    page: Page, harness: InspectorHarness
) -> None:
    analyst, files = harness.join("analyst"), harness.join("files")
    for number in range(30):
        analyst.chat(f"before {number}")
    first, other = [analyst.propose(name, {}, "files") for name in ("first", "other")]
    rows, cards = page.locator("#log .tone-proposal"), page.locator("#proposals .card")
    expect(rows).to_have_count(2)
    rows.filter(has_text="first").get_by_text("Approve").evaluate(PRESS_MOVED_BUTTON)
    analyst.propose("third", {}, "files")
    expect(page.locator("body")).to_have_attribute("data-pressed", other)
    expect(cards).to_have_count(3)
    cards.filter(has_text="first").get_by_text("Approve").evaluate(PRESS_MOVED_BUTTON)
    analyst.send("mcp/withdraw", {}, to="files", about=first)
    expect(page.locator("body")).to_have_attribute("data-pressed", other)
    press(cards.filter(has_text="third").get_by_text("Approve"))
    assert files.receive_kind("mcp/request")["kind"] == "mcp/request:tools/call:third"


def test_the_log_does_not_move_under_the_pointer(page: Page, harness: InspectorHarness) -> None:
    analyst = harness.join("analyst")
    for number in range(30):
        analyst.chat(f"before {number}")
    for number in range(3):
        analyst.think(f"hm {number}", Context(id="k", type="task"))
    analyst.propose("write_file", {}, "files")
    approve = page.locator("#log").get_by_text("Approve")
    approve.hover()
    before = approve.bounding_box()
    for number in range(3):
        analyst.chat(f"after {number}")
    analyst.conclude("done", "k")
    expect(page.locator("#log .row.fold")).to_be_visible()
    expect(page.locator("#tree .tree-item >> nth=0")).to_contain_text("40")
    assert approve.bounding_box() == before


def test_the_side_panel_keeps_focus_and_open_details_when_updated(
    page: Page, harness: InspectorHarness
) -> None:
    analyst = harness.join("analyst")
    analyst.propose("first", {}, "files")
    person = page.locator("#participants li", has_text="analyst")
    person.locator("summary").click()
    page.locator("#proposals .card").get_by_text("Edit").focus()
    page.keyboard.press("Tab")
    analyst.propose("second", {}, "files")
    harness.join("crm")
    expect(page.locator("#proposals .card")).to_have_count(2)
    expect(page.locator("#participants .person")).to_have_count(3)
    expect(page.locator("#proposals .card").nth(0).get_by_text("Reject")).to_be_focused()
    expect(person.locator("details")).to_have_attribute("open", "")
    page.keyboard.press("Enter")
    page.fill("dialog input", "not now")
    page.keyboard.press("Enter")
    expect(page.locator("#proposals .card").nth(0)).to_contain_text("Rejected by you")
    expect(page.locator("#proposals .card").nth(0)).to_be_focused()


def test_a_card_can_be_approved_only_when_all_of_it_is_visible(
    page: Page, harness: InspectorHarness
) -> None:
    analyst = harness.join("analyst")
    arguments = {f"part {number}": "tidy up" for number in range(10)} | {"then": "rm -rf /"}
    analyst.propose("short", dict(list(arguments.items())[-9:]), "files")
    analyst.propose("long", arguments, "files")
    cards = page.locator("#proposals .card")
    short, long = cards.nth(0), cards.nth(1)
    expect(short.locator("pre")).to_contain_text("rm -rf")
    assert short.locator("pre").evaluate("one => one.scrollHeight <= one.clientHeight")
    expect(long.get_by_text("Approve")).to_be_hidden()
    long.locator("summary").press("Enter")
    expect(long.locator("pre")).to_contain_text("rm -rf")
    assert long.locator("pre").evaluate("one => one.scrollHeight <= one.clientHeight")
    page.keyboard.press("Tab")
    expect(long.get_by_text("Approve")).to_be_focused()


def test_a_very_long_proposal_is_shown_on_request_and_can_be_decided_then(
    page: Page, harness: InspectorHarness
) -> None:
    analyst = harness.join("analyst")
    analyst.propose("write_file", {"text": "word " * 10_000 + "the end"}, "files")
    analyst.chat("line\n" * 40)
    proposal, chat = page.locator("#log .tone-proposal"), page.locator("#log .tone-chat")
    expect(proposal).to_contain_text("word word")
    expect(proposal.get_by_text("Approve")).to_have_count(0)
    proposal.get_by_text("Read all 50,").click()
    expect(proposal).to_contain_text("the end")
    expect(proposal.get_by_text("Approve")).to_be_visible()
    chat.get_by_text("Show all 200 characters").click()
    chat.get_by_text("Show less").click()
    expect(chat.get_by_text("Show all")).to_be_visible()


def test_all_side_sections_stay_visible_with_many_proposals(
    page: Page, harness: InspectorHarness
) -> None:
    analyst = harness.join("analyst")
    for number in range(20):
        analyst.propose(f"write_{number}", {"path": "a.csv"}, "files")
    expect(page.locator("#proposals .card")).to_have_count(20)
    expect(page.locator("#participants li", has_text="analyst")).to_be_in_viewport(ratio=1)
    expect(page.locator("#refusals-title")).to_be_in_viewport(ratio=1)
    page.locator("#proposals .card").last.scroll_into_view_if_needed()
    expect(page.locator("#proposals-title")).to_be_in_viewport(ratio=1)


@pytest.mark.rule("P-07")
def test_a_too_large_message_shows_an_error_and_keeps_the_connection(
    new_page: NewPage, tmp_path: Path
) -> None:
    with inspector_harness(tmp_path, max_message_bytes=3000) as harness:
        page = new_page()
        sockets: list[str] = []
        page.on("websocket", lambda socket: sockets.append(socket.url))
        sign_in(page, harness)
        analyst = harness.join("analyst")
        analyst.propose("write_file", {"text": "n" * 2670}, "files")
        too_large = re.compile("Too large to send: .* The gateway accepts 3,000")
        page.fill("#composer-text", "q" * 3000)
        page.press("#composer-text", "Enter")
        expect(page.locator("#composer-problem")).to_have_text(too_large)
        expect(page.locator("#composer-text")).to_have_value("q" * 3000)
        row, dialog = page.locator("#log .tone-proposal"), page.locator("dialog")
        press(row.get_by_text("Approve"))
        expect(dialog).to_contain_text(too_large)
        dialog.get_by_text("Close").click()
        for button, field in (("Edit…", "textarea"), ("Reject…", "input")):
            press(row.get_by_text(button))
            text = json.dumps({"text": "n" * 3000})
            dialog.locator(field).fill(text)
            dialog.locator(".primary").click()
            expect(dialog.locator(".problem")).to_have_text(too_large)
            expect(dialog.locator(field)).to_have_value(text)
            dialog.get_by_text("Cancel").click()
        page.fill("#composer-text", "a later word")
        expect(page.locator("#composer-problem")).to_have_text("")
        page.press("#composer-text", "Enter")
        assert analyst.receive_kind("")["payload"] == {"text": "a later word"}
        expect(page.locator("#status")).to_have_text("Signed in as ada")
        assert len(sockets) == 1


@pytest.mark.rule("P-15")
def test_a_proposal_whose_payload_does_not_match_its_kind_cannot_be_approved(
    page: Page, harness: InspectorHarness
) -> None:
    params = {"name": "delete_all", "arguments": {"path": "a.csv"}}
    payload = {"method": "tools/call", "params": params}
    harness.join("analyst").send("mcp/proposal:tools/call:read_file", payload, to="files")
    row = page.locator("#log .tone-proposal")
    expect(row).to_contain_text("Kind and payload do not match")
    expect(row).to_contain_text("delete_all")
    expect(row.get_by_text("Approve")).to_have_count(0)
    expect(page.locator("#proposals-count")).to_have_text("")


def test_participants_and_refusals_are_listed_with_their_reasons(
    new_page: NewPage, harness: InspectorHarness
) -> None:
    page = sign_in(new_page(), harness, "guest")
    crm = harness.join("crm")
    person = page.locator("#participants li", has_text="crm")
    expect(person).to_contain_text("online")
    me = page.locator("#participants li", has_text="guest")
    me.locator("summary").click()
    expect(me.locator("code")).to_have_text('{ "kind": "chat" }')
    crm.propose("write_file", {}, "files")
    press(page.locator("#log").get_by_text("Approve"))
    expect(page.locator("#refusals")).to_contain_text("capability_violation")
    expect(page.locator("#refusals")).to_contain_text("none of your capabilities allows this")


# --- search, timeline, export, link ---------------------------------------------------------------


def test_search_timeline_export_and_link(
    new_page: NewPage, harness: InspectorHarness, tmp_path: Path
) -> None:
    page = sign_in(new_page(), harness)
    run_scenario(harness)
    expect(page.locator("#log .tone-proposal")).to_have_count(1)
    page.fill("#search", "PURCHASE order")
    expect(page.locator("#log .row")).to_have_count(2)
    page.fill("#search", "")
    page.locator("#tree .tree-item", has_text="reason-789").click()
    expect(page.locator("#log .row")).to_have_count(3)
    with page.expect_download() as download:
        page.click("#export")
    lines = Path(download.value.path()).read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["reflection"] * 2 + ["conclusion"]
    page.click("#copy-link")
    link = page.input_value("dialog input")
    assert "context=reason-789" in link
    page.click("dialog >> text=Close")
    page.click("#tree .tree-item >> nth=0")
    expect(page.locator("#selection")).to_be_hidden()
    page.click("text=Timeline")
    bars = page.locator("#timeline .bar-row")
    expect(bars).to_have_count(3)
    # All at once: the page makes its rows anew when it draws.
    widths = page.locator("#timeline .bar-fill").evaluate_all(
        "bars => bars.map((bar) => bar.getBoundingClientRect().width)"
    )
    assert widths[0] > widths[1] > 0
    fresh = sign_in(new_page(), harness, fragment=link.partition("/#")[2].join(("#", "")))
    expect(fresh.locator("#selection")).to_contain_text("reason-789")
    expect(fresh.locator("#log .row")).to_have_count(3)


def test_a_link_distinguishes_the_main_context_a_context_called_main_and_an_unknown_one(
    new_page: NewPage, harness: InspectorHarness
) -> None:
    page = sign_in(new_page(), harness, fragment="#context=main")
    expect(page.locator("#selection")).to_contain_text("Context not loaded: main")
    harness.join("analyst").think("inside", Context(id="main", type="task"))
    expect(page.locator("#selection")).to_contain_text("Showing only task main")
    page.click("#tree .tree-item >> nth=1")
    expect(page.locator("#selection")).to_contain_text("Showing only the main context")
    assert page.url.endswith("/#main=1")
    page.reload()
    expect(page.locator("#selection")).to_contain_text("Showing only the main context")


# --- connection loss ------------------------------------------------------------------------------


def test_a_lost_connection_loses_no_messages(new_page: NewPage, tmp_path: Path) -> None:
    with proxied_harness(tmp_path) as (harness, proxy, origin):
        page = sign_in(new_page(), harness, url=origin)
        analyst = harness.join("analyst")
        analyst.chat("before 1")
        expect(page.locator("#log")).to_contain_text("before 1")
        proxy.disconnect()
        expect(page.locator("#status")).to_contain_text("reconnecting")
        for number in range(20):
            analyst.chat(f"meanwhile {number}.")
        page.fill("#composer-text", "said while away")
        page.keyboard.press("Enter")
        with page.expect_event("dialog") as asked:
            page.once("dialog", lambda dialog: dialog.dismiss())
            page.evaluate("location.reload()")
        assert asked.value.type == "beforeunload"
        proxy.restore()
        assert analyst.receive_kind("chat")["payload"]["text"] == "said while away"
        expect(page.locator("#status")).to_have_text("Signed in as ada")
        chats = page.locator("#log .tone-chat .text")
        wanted = ["before 1", *(f"meanwhile {n}." for n in range(20)), "said while away"]
        expect(page.locator("#log")).to_contain_text("said while away")
        page.locator("#log").evaluate("log => log.scrollTop = 0")
        page.set_viewport_size({"width": 1280, "height": 3000})
        expect(chats).to_have_text(wanted)
        expect(page.locator("#log .mark")).to_have_count(0)


def test_a_silently_dead_connection_is_detected_and_its_messages_are_sent_again(
    new_page: NewPage, tmp_path: Path
) -> None:
    with proxied_harness(tmp_path) as (harness, proxy, origin):
        page = new_page()
        sockets: list[WebSocket] = []
        page.on("websocket", lambda socket: sockets.append(socket))
        page.clock.install()
        sign_in(page, harness, url=origin)
        expect(page.locator("#log")).to_contain_text("announces its card")  # no answer is awaited
        probes: list[str] = []

        def note_probe(text: str | bytes) -> None:
            sent = json.loads(text)
            if sent["kind"] == "pod/filter":
                probes.append(sent["id"])

        sockets[0].on("framesent", note_probe)
        # A connection that is merely idle is probed and stays open.
        for number in range(1, 4):
            with sockets[0].expect_event(
                "framereceived",
                lambda text, number=number: len(probes) == number and probes[-1] in str(text),
            ):
                page.clock.fast_forward(16_000)
        expect(page.locator("#status")).to_have_text("Signed in as ada")
        expect(page.locator("#refusals")).to_have_text("None of your messages was refused.")
        assert len(sockets) == 1
        proxy.freeze()
        page.fill("#composer-text", "into the void")
        page.keyboard.press("Enter")
        note = page.locator("#composer-problem")
        page.clock.fast_forward(4_000)
        expect(note).to_have_text("The gateway has not confirmed “into the void” yet.")
        page.clock.fast_forward(8_000)
        expect(page.locator("#status")).to_contain_text("reconnecting")
        page.clock.fast_forward(1_000)
        expect(note).to_have_text("“into the void” will be sent after reconnecting.")
        analyst = harness.join("analyst")
        proxy.restore()
        page.clock.fast_forward(20_000)
        assert analyst.receive_kind("chat")["payload"]["text"] == "into the void"
        expect(page.locator("#status")).to_have_text("Signed in as ada")
        page.clock.fast_forward(1_000)
        expect(note).to_have_text("")


@pytest.mark.rule("P-20")
def test_a_decision_made_while_disconnected_is_sent_once_after_reconnecting(
    new_page: NewPage, tmp_path: Path
) -> None:
    with proxied_harness(tmp_path) as (harness, proxy, origin):
        page = sign_in(new_page(), harness, url=origin)
        analyst = harness.join("analyst")
        for name in ("first", "second", "third"):
            analyst.propose(name, {}, "files")
        cards, rows = page.locator("#proposals .card"), page.locator("#log .tone-proposal")
        expect(cards).to_have_count(3)
        proxy.disconnect()
        expect(page.locator("#status")).to_contain_text("reconnecting")
        press(cards.nth(0).get_by_text("Approve"))
        for place, button in ((1, "Reject"), (2, "Edit")):
            press(rows.nth(place).get_by_text(button))
            page.locator("dialog input, dialog textarea").fill('{"x": 1}')
            page.click("dialog .primary")
        for place, word in enumerate(("Approved", "Rejected", "Edited")):
            for where in (cards, rows):
                text = f"{word} by you, not sent yet"
                expect(where.nth(place)).to_contain_text(text)
        expect(page.locator(".proposal button")).to_have_count(0)
        expect(page.locator("#proposals-count")).to_have_text("")
        proxy.restore()
        expect(rows.nth(0)).to_contain_text("Approved by ada")
        expect(rows.nth(2)).to_contain_text("Rejected by you: edited")
        expect(cards).to_have_count(0)
        page.fill("#composer-text", "that was all")
        page.press("#composer-text", "Enter")
        kinds = ["mcp/request:tools/call:first", "mcp/reject"]
        kinds += ["mcp/request:tools/call:third", "mcp/reject", "chat"]
        received: list[str] = []
        while "chat" not in received:
            envelope = analyst.receive_kind("")
            if envelope["from"] == "ada":
                received.append(envelope["kind"])
        assert received == kinds


def test_a_filter_widened_while_disconnected_misses_nothing(
    new_page: NewPage, tmp_path: Path
) -> None:
    with proxied_harness(tmp_path) as (harness, proxy, origin):
        page = sign_in(new_page(), harness, url=origin)
        page.click("[data-strategy=main]")
        expect(page.locator("#filter")).to_have_value("main")
        analyst = harness.join("analyst")
        analyst.think("not sent at first", Context(id="k", type="reasoning"))
        analyst.chat("in the open")
        expect(page.locator("#log")).to_contain_text("in the open")
        proxy.disconnect()
        expect(page.locator("#status")).to_contain_text("reconnecting")
        page.click("[data-strategy=everything]")
        proxy.restore()
        expect(page.locator("#log")).to_contain_text("not sent at first")


def test_a_restart_is_marked(new_page: NewPage, own_harness: InspectorHarness) -> None:
    harness = own_harness
    page = sign_in(new_page(), harness)
    harness.join("analyst").chat("before")
    harness.join("crm").propose("write_file", {}, "files")
    expect(page.locator("#log")).to_contain_text("before")
    expect(page.locator("text=Approve")).to_have_count(2)
    harness.stop()
    expect(page.locator("#status")).to_contain_text("reconnecting")
    harness.start()
    expect(page.locator("#status")).to_have_text("Signed in as ada")
    expect(page.locator("#log .mark-restart")).to_contain_text("The gateway was restarted")
    expect(page.locator("#log .tone-proposal")).to_contain_text("Lost when the gateway restarted")
    expect(page.locator("text=Approve")).to_have_count(0)
    harness.join("analyst").chat("after")
    expect(page.locator("#log")).to_contain_text("after")


# --- keyboard, roles, narrow pages ----------------------------------------------------------------


def test_everything_can_be_done_from_the_keyboard(page: Page, harness: InspectorHarness) -> None:
    run_scenario(harness)
    expect(page.locator("#log .tone-proposal")).to_have_count(1)
    page.locator("body").press("g")
    expect(page.locator("#log .row:focus")).to_have_count(1)
    page.keyboard.press("r")
    expect(page.locator("#log .raw")).to_have_count(1)
    page.keyboard.press("ArrowUp")
    expect(page.locator("#log .row.fold:focus")).to_have_count(1)
    page.keyboard.press("ArrowRight")
    expect(page.locator("#log .row.fold", has_text="ledger-2026")).to_have_count(0)
    page.keyboard.press("t")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(page.locator("#selection")).to_be_visible()
    page.keyboard.press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.press("Escape")
    page.locator("#log").press("c")
    expect(page.locator("#composer-text")).to_be_focused()
    page.locator("#log").press("?")
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_be_hidden()


def test_the_tab_key_stops_at_one_row_of_the_log(page: Page, harness: InspectorHarness) -> None:
    analyst = harness.join("analyst")
    for number in range(30):
        analyst.think(f"hm {number}", Context(id="k", type="task"))
    expect(page.locator("#log")).to_contain_text("hm 29")
    page.locator("#log").press("End")
    for part in (".chip", ".twisty", ".raw-button"):
        page.keyboard.press("Tab")
        expect(page.locator(f"#log .row {part}:focus")).to_have_count(1)
    page.keyboard.press("Tab")
    expect(page.locator("#composer-context")).to_be_focused()
    page.click("text=Timeline")
    expect(page.locator("#timeline .bar-row")).to_have_count(1)
    page.locator("#timeline .scroller").press("ArrowDown")
    expect(page.locator("#timeline .bar-row")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#selection")).to_contain_text("Showing only task k")


def test_an_empty_log_shows_the_reason(page: Page, harness: InspectorHarness) -> None:
    empty = page.locator("#log .empty")
    expect(page.locator("#log .row")).to_contain_text("announces its card")  # our own
    harness.join("analyst").chat("good morning")
    expect(empty).to_be_hidden()
    page.fill("#search", "evening")
    expect(empty).to_have_text("No message matches the search.")
    page.fill("#search", "")
    expect(empty).to_be_hidden()
    harness.join("crm").think("hm", Context(id="k", type="task"))
    page.click("[data-strategy=main]")
    page.locator("#tree .tree-item", has_text="task").click()
    expect(empty).to_have_text("The filter hides 1 message here. Show everything")
    empty.get_by_text("Show everything").click()
    expect(page.locator("#log .row")).to_contain_text("hm")


def test_new_envelopes_are_announced_whatever_their_payload(
    new_page: NewPage, harness: InspectorHarness
) -> None:
    page = new_page()
    page.clock.install()
    sign_in(page, harness)
    analyst, announcer = harness.join("analyst"), page.locator("#announcer")
    analyst.send("chat", {"text": {"toString": 1, "valueOf": 2}})
    expect(page.locator("#log .tone-chat")).to_have_count(1)
    page.clock.fast_forward(5_000)
    expect(announcer).to_have_text(re.compile(r"^\d+ new envelopes?\.$"))
    analyst.chat("good morning")
    expect(page.locator("#log .tone-chat")).to_have_count(2)
    page.clock.fast_forward(5_000)
    expect(announcer).to_have_text("1 new envelope. analyst: good morning")


def test_log_and_tree_have_aria_roles(page: Page, harness: InspectorHarness) -> None:
    run_scenario(harness)
    expect(page.get_by_role("main")).to_have_count(1)
    expect(page.get_by_role("log")).to_have_count(1)
    expect(page.get_by_role("tree")).to_have_count(1)
    expect(page.get_by_role("treeitem", name=re.compile("reasoning"))).to_have_count(1)
    # Positions among siblings: everything, the main context and two root contexts are four.
    for name, place in (("workflow", ("4", "4")), ("reasoning", ("1", "1"))):
        item = page.get_by_role("treeitem", name=re.compile(name))
        expect(item).to_have_attribute("aria-posinset", place[0])
        expect(item).to_have_attribute("aria-setsize", place[1])
    last = page.get_by_role("log").get_by_role("article").last
    assert last.get_attribute("aria-posinset") == last.get_attribute("aria-setsize")


def test_a_narrow_page_has_tabs_and_no_horizontal_overflow(
    new_page: NewPage, harness: InspectorHarness
) -> None:
    page = sign_in(new_page(400, 800), harness)
    run_scenario(harness)
    expect(page.locator("#log .tone-proposal")).to_be_visible()
    for part, inside in (("contexts", "#tree"), ("timeline", "#timeline"), ("people", "#people")):
        page.click(f".tabs [data-part={part}]")
        expect(page.locator(inside)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == 400
    page.click(".tabs [data-part=contexts]")
    page.locator("#tree .tree-item", has_text="reason-789").click()
    expect(page.locator("#log .row")).to_have_count(3)
    expect(page.locator("#log")).to_be_visible()
    # A note beside the lists leaves them enough room.
    page.fill("#composer-text", "hm")
    page.click(".tabs [data-part=contexts]")
    page.locator("#tree .tree-item", has_text="Main context").click()
    expect(page.locator("#composer-problem")).to_contain_text("This goes to reasoning reason-789")
    assert page.locator("#composer-context").evaluate("one => one.clientWidth") > 100


# --- questions ------------------------------------------------------------------------------------


@pytest.mark.rule("P-72")
def test_the_page_announces_that_a_person_answers(page: Page, harness: InspectorHarness) -> None:
    files = harness.join("files")
    expect(page.locator("#status")).to_have_text("Signed in as ada")
    files.send("pod/card", {"participant": "ada"}, wait=False)
    told = files.receive_kind("system/")
    while told["kind"] not in ("system/card", "system/error"):
        told = files.receive_kind("system/")
    assert told["payload"]["card"] == dict(PERSON)
    # The same bytes as those of `mcpp chat`, so that a person who uses both has one card.
    assert told["payload"]["digest"] == card_digest(card_text(PERSON))


QUESTION: dict[str, Any] = {
    "mode": "form",
    "message": "Where should it go?",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "title": "City", "minLength": 3},
            "boxes": {"type": "integer", "default": 2},
            "size": {"type": "string", "enum": ["s", "l"], "enumNames": ["Small", "Large"]},
            "extras": {"type": "array", "items": {"type": "string", "enum": ["card", "bow"]}},
            "gift": {"type": "boolean", "default": True},
        },
        "required": ["city", "size"],
    },
}


def question(files: InspectorClient, **params: Any) -> str:
    """Put a question to ada, as a bridge does, with a JSON-RPC id of its own."""
    payload = {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "elicitation/create",
        "params": QUESTION | params,
    }
    return files.send("mcp/request:elicitation/create", payload, to="ada")


@pytest.mark.rule("P-61")
def test_a_question_is_answered_by_a_form(page: Page, harness: InspectorHarness) -> None:
    files = harness.join("files")
    asked = question(files)
    card = page.get_by_role("article", name="files asks")
    expect(card).to_contain_text("Where should it go?")
    expect(page).to_have_title(f"(1) {harness.pod} · MCPP inspector")
    press(card.get_by_text("Answer…"))
    page.click("dialog >> text=Send answer")
    expect(page.locator("dialog .problem")).to_have_text("City: enter a value.")
    page.get_by_label("City").fill("Os")
    page.get_by_label("size").select_option("l")
    page.get_by_label("extras").select_option(["card", "bow"])
    page.click("dialog >> text=Send answer")
    expect(page.locator("dialog .problem")).to_have_text("City: at least 3 characters.")
    page.get_by_label("City").fill("Oslo")
    page.click("dialog >> text=Send answer")
    answer = files.receive_kind("mcp/response:elicitation/create")
    assert answer["correlation_id"] == asked
    assert answer["to"] == ["files"]
    content = {"city": "Oslo", "boxes": 2, "size": "l", "extras": ["card", "bow"], "gift": True}
    assert answer["payload"] == {
        "jsonrpc": "2.0",
        "id": 7,
        "result": {"action": "accept", "content": content},
    }
    expect(page.locator("#questions-section")).to_be_hidden()


def test_a_question_is_declined_and_a_cancelled_one_disappears(
    page: Page, harness: InspectorHarness
) -> None:
    files = harness.join("files")
    question(files, message="First?")
    press(page.get_by_role("article", name="files asks").get_by_text("Decline"))
    declined = files.receive_kind("mcp/response:elicitation/create")
    assert declined["payload"]["result"] == {"action": "decline"}
    asked = question(files, message="Second?")
    expect(page.locator("#questions")).to_contain_text("Second?")
    cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {}}
    files.send("mcp/notification:notifications/cancelled", cancelled, to="ada", about=asked)
    expect(page.locator("#questions-section")).to_be_hidden()


def test_a_question_to_another_participant_is_not_shown(
    page: Page, harness: InspectorHarness
) -> None:
    files = harness.join("files")
    payload = {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": QUESTION}
    files.send("mcp/request:elicitation/create", payload, to="crm")
    files.chat("that was not for you")
    expect(page.locator("#log")).to_contain_text("that was not for you")
    expect(page.locator("#questions-section")).to_be_hidden()


# --- live text and loops --------------------------------------------------------------------------


@pytest.mark.rule("G-80", "P-71")
def test_a_text_grows_while_it_is_written_and_the_message_replaces_it(
    page: Page, harness: InspectorHarness
) -> None:
    analyst = harness.join("analyst")
    final = mcpp.new_envelope("chat", {"text": "The total is <b>42</b>."}, sender="analyst")

    def write(offset: int, text: str) -> None:
        payload = {"offset": offset, "text": text}
        analyst.send("live/text", payload, about=final.id, wait=False)

    live = page.locator("#live")
    expect(live).to_be_hidden()
    write(0, "The total ")
    expect(live).to_contain_text("analyst is writing The total")
    write(10, "is <b>42")
    expect(live.locator(".live-words")).to_have_text("The total is <b>42")
    write(25, "later")
    expect(live.locator(".live-words")).to_have_text("The total is <b>42…later")
    analyst._connection.send(mcpp.encode(final).decode())
    expect(live).to_be_hidden()
    expect(page.locator("#log")).to_contain_text("The total is <b>42</b>.")
    write(0, "too late")
    analyst.chat("next")
    expect(page.locator("#log")).to_contain_text("next")
    expect(live).to_be_hidden()


@pytest.mark.rule("G-85")
def test_a_suspected_loop_is_shown(new_page: NewPage, tmp_path: Path) -> None:
    with inspector_harness(tmp_path, max_hops=2, people=("ada",)) as harness:
        page = new_page()
        sign_in(page, harness)
        analyst = harness.join("analyst")
        for number in range(3):
            analyst.chat(f"n {number}")
        expect(page.locator("#log")).to_contain_text(
            "2 chats followed each other without a person. Chats such as that of analyst are"
        )


@pytest.mark.rule("C-19")
@pytest.mark.rule("C-20")
@pytest.mark.rule("C-21")
def test_the_tree_shows_titles_steps_and_outcomes(page: Page, harness: InspectorHarness) -> None:
    analyst = harness.join("analyst")
    steps = {"title": "Review of 7", "steps": ["read", "tests", "style", "verdict"]}
    review = mcpp.new_context("code-review", id="review", metadata=steps)
    analyst.send("reflection", {"thought": "read", "step": "read"}, context=review)
    analyst.send("reflection", {"thought": "tests", "step": "tests"}, context="review")
    for id, title, ending in (
        ("paris", "Book Paris", {"outcome": "failed", "error": {"type": "Full", "message": "!"}}),
        ("rome", "Book Rome", {"outcome": "cancelled"}),
    ):
        titled = mcpp.new_context("task", id=id, metadata={"title": title})
        analyst.send("reflection", {"thought": "hm"}, context=titled)
        analyst.send("conclusion", ending, context=id)
    tree = page.locator("#tree")
    expect(tree.locator(".tree-item", has_text="Review of 7")).to_contain_text("open2 of 4")
    expect(tree.locator(".tree-item", has_text="Book Paris")).to_contain_text("failed")
    expect(tree.locator(".tree-item", has_text="Book Rome")).to_contain_text("cancelled")
    folded = page.locator("#log .fold", has_text="Book Paris")
    expect(folded.locator(".outcome")).to_have_text("failed: Full: !")
    expect(page.locator("#log .chip", has_text="Review of 7").first).to_be_visible()


@pytest.mark.rule("P-51")
def test_a_proposal_without_its_proposer_takes_a_second_click(
    page: Page, harness: InspectorHarness
) -> None:
    files, analyst = harness.join("files"), harness.join("analyst")
    analyst.send(
        "mcp/proposal:tools/call:write",
        {
            "method": "tools/call",
            "params": {"name": "write", "arguments": {"path": "a.txt"}},
            "reason": "The date is wrong.",
            "preview": {"before": "1926", "after": "2026"},
        },
        to="files",
    )
    card = page.locator("#proposals .card")
    expect(card).to_contain_text("The date is wrong.")
    expect(card.locator(".preview-before")).to_contain_text("1926")
    expect(card.locator(".preview-after")).to_contain_text("2026")
    expect(card.get_by_role("button", name="Approve", exact=True)).to_be_visible()
    analyst.leave()
    expect(card.locator(".abandoned")).to_contain_text("analyst is not in the pod")
    card.get_by_role("button", name="Approve…").click()
    card.get_by_role("button", name="Approve anyway").click()
    assert files.receive_kind("mcp/request")["payload"]["params"]["arguments"] == {"path": "a.txt"}


@pytest.mark.rule("P-55")
def test_the_claims_that_are_held_are_listed(page: Page, harness: InspectorHarness) -> None:
    analyst = harness.join("analyst")
    expect(page.locator("#claims-section")).to_be_hidden()
    claim = analyst.send("claim:task-42", {})
    expect(page.locator("#claims .claim")).to_have_text("task-42analyst")
    analyst.send("release:task-42", {"done": True}, about=claim)
    expect(page.locator("#claims-section")).to_be_hidden()
    expect(page.locator("#log .row", has_text="has done")).to_contain_text("task-42")


@pytest.mark.rule("G-87")
def test_a_participant_shows_what_its_card_says(page: Page, harness: InspectorHarness) -> None:
    files = harness.join("files")
    card = {
        "description": "Reads <i>files</i>.",
        "tools": [{"name": "read_file", "description": "Read one."}, {"name": 7}, "x"],
    }
    files.send("pod/card", {"card": card})
    person = page.locator("#participants .person", has_text="files")
    person.locator("summary").click()
    expect(person).to_contain_text("Reads <i>files</i>.")
    expect(person).to_contain_text("read_file Read one.")
    files.send("pod/card", {"card": {"description": "Writes, too."}})
    expect(page.locator("#log")).to_contain_text("announces its card")
    person.locator("summary").click()
    if person.locator("details").get_attribute("open") is None:
        person.locator("summary").click()
    expect(person).to_contain_text("Writes, too.")
