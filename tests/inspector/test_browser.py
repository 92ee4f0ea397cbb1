"""The inspector as a person meets it: in Chromium, against a gateway that runs as a process."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, WebSocket, expect

from mcpp.protocol.envelope import Context
from mcpp.transient.summaries import summarize
from tests.inspector.conftest import press, sign_in
from tests.inspector.scene import play
from tests.inspector.stage import Stage, free_port, plugged, staged, up

NewPage = Callable[..., Page]


# --- signing in ----------------------------------------------------------------------------------


def test_a_wrong_token_is_told_and_a_right_one_signs_in(new_page: NewPage, stage: Stage) -> None:
    page = new_page()
    page.goto(stage.url)
    page.fill("#token", "wrong")
    page.press("#token", "Enter")
    expect(page.locator("#sign-in-problem")).to_have_text("The gateway does not know this token.")
    page.fill("#token", stage.token("ada"))
    page.press("#token", "Enter")
    expect(page.locator("#status")).to_have_text("you are ada")
    assert stage.token("ada") not in page.url
    page.reload()
    expect(page.locator("#status")).to_have_text("you are ada")
    assert page.evaluate("Object.values(localStorage).join()").find(stage.token("ada")) == -1


def test_signing_out_forgets_the_token(page: Page) -> None:
    page.click("#settings-button")
    page.click("text=Sign out")
    expect(page.locator("#token")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


@pytest.mark.rule("G-60")
def test_the_link_of_up_signs_in_once_and_leaves_the_address(
    new_page: NewPage, tmp_path: Path
) -> None:
    with up(tmp_path) as link:
        page = new_page()
        page.goto(link)
        expect(page.locator("#status")).to_have_attribute("data-state", "open")
        assert page.url == link.partition("#")[0]
        page.reload()
        expect(page.locator("#status")).to_have_attribute("data-state", "open")
        late = new_page()
        late.goto(link)
        expect(late.locator("#sign-in-problem")).to_contain_text("This link was used before")
        assert late.url == link.partition("#")[0]


@pytest.mark.rule("G-60")
def test_a_link_opened_where_the_page_already_is_signs_in_and_leaves_the_address(
    new_page: NewPage, tmp_path: Path
) -> None:
    with up(tmp_path) as link:
        page = new_page()
        page.goto(link.partition("#")[0])
        expect(page.locator("#token")).to_be_visible()
        page.evaluate("link => { location.href = link; }", link)
        expect(page.locator("#status")).to_have_attribute("data-state", "open")
        assert page.url == link.partition("#")[0]


def test_whoever_is_replaced_may_connect_again(new_page: NewPage, stage: Stage) -> None:
    page = sign_in(new_page(), stage, "guest")
    sign_in(new_page(), stage, "guest")
    expect(page.locator("#status")).to_contain_text("closed: ")
    stage.peer("analyst").chat("meanwhile")
    page.click("text=Connect again")
    expect(page.locator("#log")).to_contain_text("meanwhile")
    expect(page.locator("text=Connect again")).to_be_hidden()


@pytest.mark.rule("G-37")
def test_a_revoked_token_takes_what_it_showed_with_it(new_page: NewPage, own_stage: Stage) -> None:
    page = sign_in(new_page(), own_stage)
    own_stage.peer("analyst").chat("for members only")
    expect(page.locator("#log")).to_contain_text("for members only")
    own_stage.revoke("ada")
    expect(page.locator("#sign-in-problem")).to_have_text("This token was revoked.")
    expect(page.locator("body")).not_to_contain_text("for members only")
    assert page.evaluate("sessionStorage.length") == 0


def test_a_page_whose_scripts_are_refused_says_so(new_page: NewPage, stage: Stage) -> None:
    port = free_port()
    with plugged(stage.port, port):
        page = new_page()
        page.goto(f"http://127.0.0.1:{port}")
        stuck = page.locator("#stuck")
        expect(stuck).to_contain_text("allowed_origins")
        # It waits a while, so that it does not flash while a page loads.
        stuck.evaluate("one => one.getAnimations().forEach(wait => wait.finish())")
        expect(stuck).to_be_visible()


def test_a_link_with_a_filter_that_cannot_be_read_says_so(new_page: NewPage, stage: Stage) -> None:
    page = sign_in(new_page(), stage, fragment="#filter=main+or+whatever")
    expect(page.locator("#filter-problem")).to_contain_text("“whatever” is not known")
    expect(page.locator("#filter")).to_have_value("main or whatever")


# --- the log and the tree ------------------------------------------------------------------------


def test_messages_appear_as_they_are_sent_readable_by_kind(page: Page, stage: Stage) -> None:
    analyst, crm = stage.peer("analyst"), stage.peer("crm")
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


def test_nobody_writes_over_another_s_words(page: Page, stage: Stage) -> None:
    analyst, crm = stage.peer("analyst"), stage.peer("crm")
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
    expect(page.locator("#proposals")).to_contain_text("crm objects")
    expect(page.locator("#proposals").get_by_text("Approve")).to_be_enabled()
    assert [one.screenshot() for one in honest] == before


def test_the_tree_shows_contexts_and_selects_them(page: Page, stage: Stage) -> None:
    play(stage)
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


def test_a_concluded_context_is_one_line_that_unfolds(page: Page, stage: Stage) -> None:
    files = stage.peer("files")
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
    expect(fold.locator(".badge")).to_have_text(["2 more since", "1 to you"])
    fold.locator("button.twisty").click()
    expect(page.locator("#log .tone-thought")).to_have_count(1)


def test_a_call_leads_to_its_answer_whatever_hides_it(page: Page, stage: Stage) -> None:
    analyst, crm = stage.peer("analyst"), stage.peer("crm")
    call = analyst.ask("search", {}, "crm", context=Context(id="k", type="task"))
    crm.answer(call, "search", {"content": [{"type": "text", "text": "nine records"}]})
    page.locator("#tree .tree-item", has_text="task").click()
    expect(page.locator("#log")).not_to_contain_text("nine records")
    page.click("#log .tone-call [title='Show the answer']")
    expect(page.locator("#log .tone-result:focus")).to_contain_text("nine records")
    page.fill("#filter", "kind:mcp/response:*")
    page.press("#filter", "Enter")
    expect(page.locator("#log .tone-call")).to_have_count(0)
    page.fill("#search", "nine")
    page.click("#log .tone-result [title='Show the call']")
    expect(page.locator("#log .tone-call:focus")).to_contain_text("search")
    expect(page.locator("[data-strategy=everything][aria-pressed=true]")).to_have_count(1)


def test_an_answer_leads_to_what_it_is_about(page: Page, stage: Stage) -> None:
    analyst = stage.peer("analyst")
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
    stage.peer("crm").send("mcp/reject", {"reason": "too late"}, about=asked)
    page.locator("#log .tone-reject").get_by_text("on analyst: write_file").click()
    expect(page.locator("#log .tone-proposal")).to_be_focused()


def test_an_expired_context_is_shown_as_such(new_page: NewPage, tmp_path: Path) -> None:
    with staged(tmp_path, context_idle_seconds=0.2) as stage:
        page = sign_in(new_page(), stage)
        files = stage.peer("files")
        files.think("hm", Context(id="brief", type="task"))
        files.conclude("yes", Context(id="check", type="review"))
        states = page.locator("#tree .tree-state")
        expect(states).to_have_text(["concluded, expired", "expired"])
        expect(page.locator("#log .row.fold")).to_contain_text(re.compile("yes.*expired"))
        page.click("text=Timeline")
        expect(page.locator("#timeline .bar-row .unseen")).to_have_text(
            ["expired", "concluded, expired"]
        )


def test_what_is_said_in_an_expired_context_is_said_there(
    new_page: NewPage, tmp_path: Path
) -> None:
    with staged(tmp_path, context_idle_seconds=0.2) as stage:
        page = sign_in(new_page(), stage)
        files = stage.peer("files")
        files.think("hm", Context(id="brief", type="task"))
        item = page.locator("#tree .tree-item", has_text="expired")
        item.click()
        note = page.locator("#composer-problem")
        expect(note).to_have_text("That context has expired: this begins it anew.")
        page.fill("#composer-text", "still here?")
        page.press("#composer-text", "Enter")
        assert files.receive_kind("chat")["context"] == {"id": "brief", "type": "task"}
        expect(page.locator("#log .row")).to_have_count(1)
        expect(page.locator("#log .row")).to_contain_text("still here?")
        # Even where a filter hides all of that context.
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


def test_a_draft_stays_in_its_place_whatever_is_looked_at(page: Page, stage: Stage) -> None:
    analyst, note = stage.peer("analyst"), page.locator("#composer-problem")
    for id in ("older", "newer"):
        analyst.think("hm", Context(id=id, type="task"))
    analyst.conclude("done", "older")
    places = page.locator("#composer-context option")
    expect(places).to_have_text(["the main context", "task newer", "task older, concluded"])
    page.fill("#composer-text", "for everybody")
    page.locator("#tree .tree-item", has_text="newer").click()
    expect(page.locator("#composer-context")).to_have_value("")
    expect(note).to_have_text("This goes to the main context, not to what you look at.")
    page.fill("#composer-text", "")
    page.locator("#tree .tree-item", has_text="newer").click()
    expect(page.locator("#composer-context")).to_have_value("newer")
    page.fill("#composer-text", "for this one")
    page.click("#tree .tree-item >> nth=1")
    expect(note).to_have_text("This goes to task newer, not to what you look at.")


def test_the_list_of_places_does_not_change_while_it_is_used(page: Page, stage: Stage) -> None:
    analyst, places = stage.peer("analyst"), page.locator("#composer-context option")
    analyst.think("hm", Context(id="first", type="task"))
    expect(places).to_have_count(2)
    page.focus("#composer-context")
    analyst.think("hm", Context(id="second", type="task"))
    expect(page.locator("#composer-to option")).to_have_count(2)
    expect(page.locator("#tree")).to_contain_text("second")
    expect(places).to_have_count(2)
    page.focus("#composer-text")
    expect(places).to_have_count(3)


def test_the_log_stays_at_its_end_when_its_room_changes(page: Page, stage: Stage) -> None:
    analyst = stage.peer("analyst")
    for number in range(30):
        analyst.chat(f"word {number}.")
    expect(page.locator("#log")).to_contain_text("word 29.")
    # The browser tells of a scroll when it has happened, and something else may have by then.
    page.locator("#log").evaluate(
        "log => { log.style.maxHeight = '200px'; log.dispatchEvent(new Event('scroll')); }"
    )
    analyst.chat("the last word")
    expect(page.locator("#log")).to_contain_text("the last word")
    expect(page.locator("#follow")).to_be_hidden()
    page.locator("#log").evaluate("log => log.scrollTop -= 100")
    expect(page.locator("#follow")).to_be_visible()


def test_what_a_filter_hides_is_said_to_be_unknown(page: Page, stage: Stage) -> None:
    files = stage.peer("files")
    files.think("hm", Context(id="k", type="task"))
    item = page.locator("#tree .tree-item", has_text="task")
    expect(item).to_contain_text("open")
    page.click("[data-strategy=main]")
    expect(item.locator(".tree-state")).to_have_text("unknown")
    files.conclude("done", "k")
    page.reload()
    expect(item.locator(".tree-second")).to_have_text("unknownnothing of it is loaded")
    page.click("#strategies >> text=Everything")
    expect(item.locator(".tree-state")).to_have_text("concluded")


# --- filters -------------------------------------------------------------------------------------


def sent_frames(page: Page) -> list[str]:
    """Return the texts that the page has received from now on."""
    frames: list[str] = []
    page.on(
        "websocket",
        lambda socket: socket.on("framereceived", lambda frame: frames.append(str(frame))),
    )
    return frames


def test_the_five_strategies_are_a_click_and_the_gateway_sends_no_more(
    new_page: NewPage, stage: Stage
) -> None:
    page = new_page()
    frames = sent_frames(page)
    sign_in(page, stage)
    analyst = stage.peer("analyst")
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
    # What was not sent is fetched when it is wanted.
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


def test_the_last_of_two_quick_clicks_is_the_filter_that_the_gateway_uses(
    page: Page, stage: Stage
) -> None:
    analyst = stage.peer("analyst")
    analyst.chat("in the open")
    analyst.conclude("thought through", Context(id="k"))
    page.click("[data-strategy=main]")
    expect(page.locator("#filter")).to_have_value("main")
    # The first needs the history anew, and is not there yet when the second comes.
    page.evaluate(
        """for (const name of ['everything', 'conclusions']) {
          document.querySelector(`[data-strategy=${name}]`).click();
        }"""
    )
    expect(page.locator("#log")).to_contain_text("thought through")
    expect(page.locator("#log")).not_to_contain_text("in the open")
    expect(page.locator("[data-strategy=conclusions]")).to_have_attribute("aria-pressed", "true")


def test_the_algebra_is_completed_and_mistakes_are_explained(page: Page, stage: Stage) -> None:
    stage.peer("analyst").chat("hello")
    stage.peer("crm").chat("hello too")
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
    expect(page.locator("#filter-problem")).to_contain_text("“whatever” is not known")
    expect(page.locator("#filter-problem")).to_contain_text("At character 10: ")
    page.fill("#filter", "main and kin")
    expect(page.locator("#filter-problem")).to_be_hidden()
    page.press("#filter", "Enter")
    expect(page.locator("#filter-problem")).to_contain_text("“kin” is not known")
    expect(page.locator("#filter-options")).to_be_hidden()
    # What is typed stays until it is applied or dropped.
    page.fill("#filter", "kind:chat")
    page.locator("#filter").blur()
    stage.peer("files")
    expect(page.locator("#participants-count")).to_have_text("4")
    expect(page.locator("#filter")).to_have_value("kind:chat")
    page.press("#filter", "Escape")
    page.press("#filter", "Escape")
    expect(page.locator("#filter")).to_have_value("not from:crm")


# --- transient results ---------------------------------------------------------------------------


def test_a_consumed_result_is_a_gray_accordion_with_its_original_inside(
    page: Page, stage: Stage
) -> None:
    play(stage)
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


# Asked in the browser: Node has not learnt yet to keep the digits of a number.
SUMMARIZE = """async texts => {
  const {parseExactly} = await import('/inspector/state/json.js');
  const {summarize} = await import('/inspector/state/summaries.js');
  return texts.map(text => summarize(parseExactly(text)));
}"""


def test_the_ids_in_a_summary_are_those_of_the_sdk_to_the_last_digit(page: Page) -> None:
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


# --- taking part ---------------------------------------------------------------------------------


def test_a_person_speaks_in_the_main_context_and_in_another(page: Page, stage: Stage) -> None:
    analyst = stage.peer("analyst")
    analyst.think("hm", Context(id="k", type="reasoning"))
    expect(page.locator("#tree")).to_contain_text("reasoning")
    page.fill("#composer-text", "hello, all")
    page.keyboard.press("Enter")
    heard = analyst.receive_kind("chat")
    assert (heard["from"], heard["payload"]) == ("ada", {"text": "hello, all"})
    assert "context" not in heard
    page.locator("#tree .tree-item", has_text="reasoning").click()
    expect(page.locator("#composer-context")).to_have_value("k")
    page.select_option("#composer-to", "analyst")
    page.fill("#composer-text", "are you sure?")
    page.click("text=Send")
    heard = analyst.receive_kind("chat")
    assert heard["context"]["id"] == "k"
    assert heard["to"] == ["analyst"]
    expect(page.locator("#log .tone-chat")).to_have_text(re.compile("are you sure?"))


def test_a_message_goes_where_it_was_meant_to_whatever_happens_meanwhile(
    new_page: NewPage, own_stage: Stage
) -> None:
    page = sign_in(new_page(), own_stage)
    own_stage.peer("crm").think("hm", Context(id="k", type="task"))
    page.select_option("#composer-context", "k")
    page.select_option("#composer-to", "crm")
    page.fill("#composer-text", "for crm, in k")
    own_stage.stop()
    own_stage.start()
    expect(page.locator("#composer-context")).to_contain_text("task k, expired")
    expect(page.locator("#composer-to")).to_contain_text("crm, who is away")
    page.press("#composer-text", "Escape")
    page.locator("#log").press("Escape")
    analyst = own_stage.peer("analyst")
    page.press("#composer-text", "Enter")
    heard = analyst.receive_kind("chat")
    assert (heard["to"], heard["context"]["id"]) == (["crm"], "k")


@pytest.mark.rule("P-20")
def test_a_proposal_is_approved_edited_and_rejected(page: Page, stage: Stage) -> None:
    analyst, files = stage.peer("analyst"), stage.peer("files")
    for path in ("a.csv", "b.csv", "c.csv"):
        analyst.propose("write_file", {"path": path}, "files", context=Context(id="w"))
    rows = page.locator("#log .tone-proposal")
    expect(rows).to_have_count(3)
    expect(page.locator("#proposals-count")).to_have_text("3")
    expect(page.get_by_role("article", name="analyst proposes write_file")).to_have_count(3)
    expect(page).to_have_title(f"(3) {stage.pod} · MCPP inspector")
    press(rows.nth(0).locator("text=Approve"))
    request = files.receive_kind("mcp/request")
    assert request["kind"] == "mcp/request:tools/call:write_file"
    assert request["payload"]["params"] == {"name": "write_file", "arguments": {"path": "a.csv"}}
    assert request["payload"]["id"] == request["id"]
    assert (request["to"], request["context"]) == (["files"], {"id": "w"})
    expect(rows.nth(0)).to_contain_text("Approved by ada")

    press(rows.nth(1).locator("text=Edit"))
    expect(page.get_by_role("dialog", name="Change the arguments of write_file")).to_be_visible()
    page.fill("dialog textarea", "{")
    page.click("dialog >> text=Send request")
    expect(page.locator("dialog .problem")).to_contain_text("This is not JSON")
    page.fill("dialog textarea", "[1, 2]")
    page.click("dialog >> text=Send request")
    expect(page.locator("dialog .problem")).to_contain_text("Arguments are an object")
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
def test_an_edited_call_keeps_all_but_its_arguments_and_may_have_had_none(
    page: Page, stage: Stage
) -> None:
    analyst, files = stage.peer("analyst"), stage.peer("files")
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
def test_nobody_is_told_of_a_changed_request_that_was_refused(
    new_page: NewPage, stage: Stage
) -> None:
    page = sign_in(new_page(), stage, "critic")
    analyst = stage.peer("analyst")
    analyst.propose("write_file", {"path": "a.csv"}, "files")
    card = page.locator("#proposals .card")
    press(card.get_by_text("Edit"))
    page.fill("dialog textarea", '{"path": "b.csv"}')
    page.click("dialog .primary")
    for where in (card, page.locator("#log .tone-proposal")):
        expect(where).to_contain_text("Your answer was refused")
        expect(where.get_by_text("Edit")).to_be_visible()
    press(card.get_by_text("Reject"))
    page.fill("dialog input", "not today")
    page.click("dialog .primary")
    assert analyst.receive_kind("mcp/")["payload"] == {"reason": "not today"}


@pytest.mark.rule("P-20")
def test_what_is_approved_is_what_was_proposed_to_the_last_digit_and_once(
    page: Page, stage: Stage
) -> None:
    analyst, files = stage.peer("analyst"), stage.peer("files")
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
def test_what_somebody_else_has_decided_is_not_decided_again(
    new_page: NewPage, stage: Stage
) -> None:
    page, other = sign_in(new_page(), stage), sign_in(new_page(), stage, "crm")
    stage.peer("analyst").propose("write_file", {"path": "a.csv"}, "files")
    press(page.locator("#proposals").get_by_text("Edit"))
    press(other.locator("#proposals").get_by_text("Approve"))
    expect(page.locator("#log .tone-proposal")).to_contain_text("Approved by crm")
    page.fill("dialog textarea", '{"path": 1, "path": 2}')
    page.click("dialog .primary")
    expect(page.locator("dialog .problem")).to_contain_text("A key is there twice")
    page.fill("dialog textarea", '{"path": 1}')
    page.click("dialog .primary")
    expect(page.locator("dialog .problem")).to_contain_text("decided already: Approved by crm")
    page.click("dialog >> text=Cancel")
    # The button that had it is gone; the focus is not.
    expect(page.locator(":focus")).to_have_count(1)


def test_nothing_moves_under_a_pointer_that_is_about_to_decide(page: Page, stage: Stage) -> None:
    analyst = stage.peer("analyst")
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


# Press what comes to the place of a button that decides, in the moment in which it has come.
PRESS_WHAT_COMES = """button => {
  const {x, y} = button.getBoundingClientRect();
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


def test_a_finger_decides_nothing_that_has_only_just_come_under_it(
    page: Page, stage: Stage
) -> None:
    analyst, files = stage.peer("analyst"), stage.peer("files")
    for number in range(30):
        analyst.chat(f"before {number}")
    first, other = [analyst.propose(name, {}, "files") for name in ("first", "other")]
    row = page.locator("#log .tone-proposal", has_text="first")
    row.get_by_text("Approve").evaluate(PRESS_WHAT_COMES)
    analyst.propose("third", {}, "files")
    expect(page.locator("body")).to_have_attribute("data-pressed", other)
    card = page.locator("#proposals .card", has_text="first")
    card.get_by_text("Approve").evaluate(PRESS_WHAT_COMES)
    analyst.send("mcp/withdraw", {}, to="files", about=first)
    expect(page.locator("body")).to_have_attribute("data-pressed", other)
    press(page.locator("#proposals .card", has_text="third").get_by_text("Approve"))
    assert files.receive_kind("mcp/request")["kind"] == "mcp/request:tools/call:third"


def test_the_log_does_not_move_under_a_pointer_that_is_about_to_decide(
    page: Page, stage: Stage
) -> None:
    analyst = stage.peer("analyst")
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
    expect(page.locator("#tree .tree-item >> nth=0")).to_contain_text("39")
    assert approve.bounding_box() == before


def test_the_side_keeps_focus_and_what_is_open_when_something_comes(
    page: Page, stage: Stage
) -> None:
    analyst = stage.peer("analyst")
    analyst.propose("first", {}, "files")
    person = page.locator("#participants li", has_text="analyst")
    person.locator("summary").click()
    page.locator("#proposals .card").get_by_text("Edit").focus()
    page.keyboard.press("Tab")
    analyst.propose("second", {}, "files")
    stage.peer("crm")
    expect(page.locator("#proposals .card")).to_have_count(2)
    expect(page.locator("#participants .person")).to_have_count(3)
    expect(page.locator("#proposals .card").nth(0).get_by_text("Reject")).to_be_focused()
    expect(person.locator("details")).to_have_attribute("open", "")
    page.keyboard.press("Enter")
    page.fill("dialog input", "not now")
    page.keyboard.press("Enter")
    expect(page.locator("#proposals .card").nth(0)).to_contain_text("Rejected by you")
    expect(page.locator("#proposals .card").nth(0)).to_be_focused()


def test_a_card_offers_to_approve_only_what_it_shows(page: Page, stage: Stage) -> None:
    analyst = stage.peer("analyst")
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


def test_what_is_very_long_is_laid_out_when_asked_for_and_decided_then(
    page: Page, stage: Stage
) -> None:
    analyst = stage.peer("analyst")
    analyst.propose("write_file", {"text": "word " * 10_000 + "the end"}, "files")
    analyst.chat("line\n" * 40)
    proposal, chat = page.locator("#log .tone-proposal"), page.locator("#log .tone-chat")
    expect(proposal).to_contain_text("word word")
    expect(proposal.get_by_text("Approve")).to_have_count(0)
    proposal.get_by_text("Read 50,").click()
    expect(proposal).to_contain_text("the end")
    expect(proposal.get_by_text("Approve")).to_be_visible()
    chat.get_by_text("Show all 200 characters").click()
    chat.get_by_text("Show less").click()
    expect(chat.get_by_text("Show all")).to_be_visible()


def test_however_much_waits_one_sees_who_is_here_and_what_was_refused(
    page: Page, stage: Stage
) -> None:
    analyst = stage.peer("analyst")
    for number in range(20):
        analyst.propose(f"write_{number}", {"path": "a.csv"}, "files")
    expect(page.locator("#proposals .card")).to_have_count(20)
    expect(page.locator("#participants li", has_text="analyst")).to_be_in_viewport(ratio=1)
    expect(page.locator("#refusals-title")).to_be_in_viewport(ratio=1)
    page.locator("#proposals .card").last.scroll_into_view_if_needed()
    expect(page.locator("#proposals-title")).to_be_in_viewport(ratio=1)


@pytest.mark.rule("P-07")
def test_what_is_too_large_is_told_in_its_place_and_costs_no_connection(
    new_page: NewPage, tmp_path: Path
) -> None:
    with staged(tmp_path, max_message_bytes=3000) as stage:
        page = new_page()
        lines: list[str] = []
        page.on("websocket", lambda socket: lines.append(socket.url))
        sign_in(page, stage)
        analyst = stage.peer("analyst")
        analyst.propose("write_file", {"text": "n" * 2670}, "files")
        too_large = re.compile("too large to be sent: .* the gateway takes 3,000")
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
        expect(page.locator("#status")).to_have_text("you are ada")
        assert len(lines) == 1


@pytest.mark.rule("P-15")
def test_a_proposal_that_is_not_what_its_kind_says_is_not_offered(page: Page, stage: Stage) -> None:
    params = {"name": "delete_all", "arguments": {"path": "a.csv"}}
    payload = {"method": "tools/call", "params": params}
    stage.peer("analyst").send("mcp/proposal:tools/call:read_file", payload, to="files")
    row = page.locator("#log .tone-proposal")
    expect(row).to_contain_text("Kind and payload disagree")
    expect(row).to_contain_text("delete_all")
    expect(row.get_by_text("Approve")).to_have_count(0)
    expect(page.locator("#proposals-count")).to_have_text("")


def test_participants_and_refusals_are_listed_with_their_reasons(
    new_page: NewPage, stage: Stage
) -> None:
    page = sign_in(new_page(), stage, "guest")
    crm = stage.peer("crm")
    person = page.locator("#participants li", has_text="crm")
    expect(person).to_contain_text("here")
    me = page.locator("#participants li", has_text="guest")
    me.locator("summary").click()
    expect(me.locator("code")).to_have_text('{ "kind": "chat" }')
    crm.propose("write_file", {}, "files")
    press(page.locator("#log").get_by_text("Approve"))
    expect(page.locator("#refusals")).to_contain_text("capability_violation")
    expect(page.locator("#refusals")).to_contain_text("none of your capabilities allows this")


# --- search, timeline, export, link --------------------------------------------------------------


def test_search_timeline_export_and_link(new_page: NewPage, stage: Stage, tmp_path: Path) -> None:
    page = sign_in(new_page(), stage)
    play(stage)
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
    page.click("text=Timeline")
    bars = page.locator("#timeline .bar-row")
    expect(bars).to_have_count(3)
    widths = [bar.bounding_box() for bar in page.locator("#timeline .bar-fill").all()]
    assert widths[0] is not None
    assert widths[1] is not None
    assert widths[0]["width"] > widths[1]["width"]
    fresh = sign_in(new_page(), stage, fragment=link.partition("/#")[2].join(("#", "")))
    expect(fresh.locator("#selection")).to_contain_text("reason-789")
    expect(fresh.locator("#log .row")).to_have_count(3)


def test_a_link_names_the_main_context_and_one_called_main_and_one_that_is_not_there(
    new_page: NewPage, stage: Stage
) -> None:
    page = sign_in(new_page(), stage, fragment="#context=main")
    expect(page.locator("#selection")).to_contain_text("Not in what is loaded: the context main")
    stage.peer("analyst").think("inside", Context(id="main", type="task"))
    expect(page.locator("#selection")).to_contain_text("Showing only task main")
    page.click("#tree .tree-item >> nth=1")
    expect(page.locator("#selection")).to_contain_text("Showing only the main context")
    assert page.url.endswith("/#main=1")
    page.reload()
    expect(page.locator("#selection")).to_contain_text("Showing only the main context")


# --- lines that break ----------------------------------------------------------------------------


def test_a_cut_line_loses_nothing(new_page: NewPage, tmp_path: Path) -> None:
    port = free_port()
    origin = f"http://127.0.0.1:{port}"
    with staged(tmp_path, origins=(origin,)) as stage, plugged(stage.port, port) as cable:
        page = sign_in(new_page(), stage, url=origin)
        analyst = stage.peer("analyst")
        analyst.chat("before 1")
        expect(page.locator("#log")).to_contain_text("before 1")
        cable.cut()
        expect(page.locator("#status")).to_contain_text("reconnecting")
        for number in range(20):
            analyst.chat(f"meanwhile {number}.")
        page.fill("#composer-text", "said while away")
        page.keyboard.press("Enter")
        with page.expect_event("dialog") as asked:
            page.once("dialog", lambda dialog: dialog.dismiss())
            page.evaluate("location.reload()")
        assert asked.value.type == "beforeunload"
        cable.plug()
        assert analyst.receive_kind("chat")["payload"]["text"] == "said while away"
        expect(page.locator("#status")).to_have_text("you are ada")
        chats = page.locator("#log .tone-chat .text")
        wanted = ["before 1", *(f"meanwhile {n}." for n in range(20)), "said while away"]
        expect(page.locator("#log")).to_contain_text("said while away")
        page.locator("#log").evaluate("log => log.scrollTop = 0")
        page.set_viewport_size({"width": 1280, "height": 3000})
        expect(chats).to_have_text(wanted)
        expect(page.locator("#log .mark")).to_have_count(0)


def test_a_line_that_dies_is_noticed_and_what_was_said_into_it_arrives(
    new_page: NewPage, tmp_path: Path
) -> None:
    port = free_port()
    origin = f"http://127.0.0.1:{port}"
    with staged(tmp_path, origins=(origin,)) as stage, plugged(stage.port, port) as cable:
        page = new_page()
        lines: list[WebSocket] = []
        page.on("websocket", lambda line: lines.append(line))
        page.clock.install()
        sign_in(page, stage, url=origin)
        # A line that is merely quiet is asked, and stays.
        for _ in range(3):
            with lines[0].expect_event("framereceived", lambda text: "system/filter" in str(text)):
                page.clock.fast_forward(16_000)
        expect(page.locator("#status")).to_have_text("you are ada")
        expect(page.locator("#refusals")).to_have_text("Nothing of yours was refused.")
        assert len(lines) == 1
        cable.die()
        page.fill("#composer-text", "into the void")
        page.keyboard.press("Enter")
        note = page.locator("#composer-problem")
        page.clock.fast_forward(4_000)
        expect(note).to_have_text("The gateway has not confirmed “into the void” yet.")
        page.clock.fast_forward(8_000)
        expect(page.locator("#status")).to_contain_text("reconnecting")
        page.clock.fast_forward(1_000)
        expect(note).to_have_text("“into the void” will be sent when the line is back.")
        analyst = stage.peer("analyst")
        cable.plug()
        page.clock.fast_forward(20_000)
        assert analyst.receive_kind("chat")["payload"]["text"] == "into the void"
        expect(page.locator("#status")).to_have_text("you are ada")
        page.clock.fast_forward(1_000)
        expect(note).to_have_text("")


@pytest.mark.rule("P-20")
def test_what_is_decided_while_the_line_is_cut_says_so_and_is_sent_once(
    new_page: NewPage, tmp_path: Path
) -> None:
    port = free_port()
    origin = f"http://127.0.0.1:{port}"
    with staged(tmp_path, origins=(origin,)) as stage, plugged(stage.port, port) as cable:
        page = sign_in(new_page(), stage, url=origin)
        analyst = stage.peer("analyst")
        for name in ("first", "second", "third"):
            analyst.propose(name, {}, "files")
        cards, rows = page.locator("#proposals .card"), page.locator("#log .tone-proposal")
        expect(cards).to_have_count(3)
        cable.cut()
        expect(page.locator("#status")).to_contain_text("reconnecting")
        press(cards.nth(0).get_by_text("Approve"))
        for place, button in ((1, "Reject"), (2, "Edit")):
            press(rows.nth(place).get_by_text(button))
            page.locator("dialog input, dialog textarea").fill('{"x": 1}')
            page.click("dialog .primary")
        for place, word in enumerate(("Approved", "Rejected", "Edited")):
            for where in (cards, rows):
                text = f"{word} by you: it will be sent when the line is back"
                expect(where.nth(place)).to_contain_text(text)
        expect(page.locator(".proposal button")).to_have_count(0)
        expect(page.locator("#proposals-count")).to_have_text("")
        cable.plug()
        expect(rows.nth(0)).to_contain_text("Approved by ada")
        expect(rows.nth(2)).to_contain_text("Rejected by you: edited")
        expect(cards).to_have_count(0)
        page.fill("#composer-text", "that was all")
        page.press("#composer-text", "Enter")
        kinds = ["mcp/request:tools/call:first", "mcp/reject"]
        kinds += ["mcp/request:tools/call:third", "mcp/reject", "chat"]
        heard: list[str] = []
        while "chat" not in heard:
            envelope = analyst.receive_kind("")
            if envelope["from"] == "ada":
                heard.append(envelope["kind"])
        assert heard == kinds


def test_a_filter_that_widens_while_the_line_is_cut_misses_nothing(
    new_page: NewPage, tmp_path: Path
) -> None:
    port = free_port()
    origin = f"http://127.0.0.1:{port}"
    with staged(tmp_path, origins=(origin,)) as stage, plugged(stage.port, port) as cable:
        page = sign_in(new_page(), stage, url=origin)
        page.click("[data-strategy=main]")
        expect(page.locator("#filter")).to_have_value("main")
        analyst = stage.peer("analyst")
        analyst.think("not sent at first", Context(id="k", type="reasoning"))
        analyst.chat("in the open")
        expect(page.locator("#log")).to_contain_text("in the open")
        cable.cut()
        expect(page.locator("#status")).to_contain_text("reconnecting")
        page.click("[data-strategy=everything]")
        cable.plug()
        expect(page.locator("#log")).to_contain_text("not sent at first")


def test_a_restart_is_marked(new_page: NewPage, own_stage: Stage) -> None:
    stage = own_stage
    page = sign_in(new_page(), stage)
    stage.peer("analyst").chat("before")
    stage.peer("crm").propose("write_file", {}, "files")
    expect(page.locator("#log")).to_contain_text("before")
    expect(page.locator("text=Approve")).to_have_count(2)
    stage.stop()
    expect(page.locator("#status")).to_contain_text("reconnecting")
    stage.start()
    expect(page.locator("#status")).to_have_text("you are ada")
    expect(page.locator("#log .mark-restart")).to_contain_text("The gateway was restarted")
    expect(page.locator("#log .tone-proposal")).to_contain_text("Lost when the gateway")
    expect(page.locator("text=Approve")).to_have_count(0)
    stage.peer("analyst").chat("after")
    expect(page.locator("#log")).to_contain_text("after")


# --- the keyboard, roles, narrow pages -----------------------------------------------------------


def test_everything_can_be_done_from_the_keyboard(page: Page, stage: Stage) -> None:
    play(stage)
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


def test_the_tab_key_passes_the_log_by_one_row(page: Page, stage: Stage) -> None:
    analyst = stage.peer("analyst")
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


def test_an_empty_log_says_why(page: Page, stage: Stage) -> None:
    empty = page.locator("#log .empty")
    expect(empty).to_have_text("Nothing was said here yet.")
    stage.peer("analyst").chat("good morning")
    expect(empty).to_be_hidden()
    page.fill("#search", "evening")
    expect(empty).to_have_text("Nothing that is loaded contains “evening”.")
    page.fill("#search", "")
    expect(empty).to_be_hidden()
    stage.peer("crm").think("hm", Context(id="k", type="task"))
    page.click("[data-strategy=main]")
    page.locator("#tree .tree-item", has_text="task").click()
    expect(empty).to_have_text("The filter hides 1 message here. Show everything")
    empty.get_by_text("Show everything").click()
    expect(page.locator("#log .row")).to_contain_text("hm")


def test_what_comes_is_announced_whatever_it_holds(new_page: NewPage, stage: Stage) -> None:
    page = new_page()
    page.clock.install()
    sign_in(page, stage)
    analyst, announcer = stage.peer("analyst"), page.locator("#announcer")
    analyst.send("chat", {"text": {"toString": 1, "valueOf": 2}})
    expect(page.locator("#log .tone-chat")).to_have_count(1)
    page.clock.fast_forward(5_000)
    expect(announcer).to_have_text(re.compile(r"^\d+ new envelopes?\.$"))
    analyst.chat("good morning")
    expect(page.locator("#log .tone-chat")).to_have_count(2)
    page.clock.fast_forward(5_000)
    expect(announcer).to_have_text("1 new envelope. analyst: good morning")


def test_log_and_tree_have_their_roles(page: Page, stage: Stage) -> None:
    play(stage)
    expect(page.get_by_role("main")).to_have_count(1)
    expect(page.get_by_role("log")).to_have_count(1)
    expect(page.get_by_role("tree")).to_have_count(1)
    expect(page.get_by_role("treeitem", name=re.compile("reasoning"))).to_have_count(1)
    # Among their siblings: everything, the main context and the two outermost ones are four.
    for name, place in (("workflow", ("4", "4")), ("reasoning", ("1", "1"))):
        item = page.get_by_role("treeitem", name=re.compile(name))
        expect(item).to_have_attribute("aria-posinset", place[0])
        expect(item).to_have_attribute("aria-setsize", place[1])
    last = page.get_by_role("log").get_by_role("article").last
    assert last.get_attribute("aria-posinset") == last.get_attribute("aria-setsize")


def test_a_narrow_page_has_tabs_and_nothing_sticks_out(new_page: NewPage, stage: Stage) -> None:
    page = sign_in(new_page(400, 800), stage)
    play(stage)
    expect(page.locator("#log .tone-proposal")).to_be_visible()
    for part, inside in (("contexts", "#tree"), ("timeline", "#timeline"), ("people", "#people")):
        page.click(f".tabs [data-part={part}]")
        expect(page.locator(inside)).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == 400
    page.click(".tabs [data-part=contexts]")
    page.locator("#tree .tree-item", has_text="reason-789").click()
    expect(page.locator("#log .row")).to_have_count(3)
    expect(page.locator("#log")).to_be_visible()
    # A note beside them leaves the lists their room.
    page.fill("#composer-text", "hm")
    page.click(".tabs [data-part=contexts]")
    page.locator("#tree .tree-item", has_text="Main context").click()
    expect(page.locator("#composer-problem")).to_contain_text("This goes to reasoning reason-789")
    assert page.locator("#composer-context").evaluate("one => one.clientWidth") > 100
