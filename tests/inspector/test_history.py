"""The inspector reads back: a log that is longer than what the page receives at first."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from mcpp.protocol.envelope import Context
from tests.inspector.conftest import sign_in
from tests.inspector.harness import InspectorClient, InspectorHarness, inspector_harness
from tests.inspector.test_hostile import FOREIGN, HOSTILE
from tests.inspector.test_load import Flood

NewPage = Callable[..., Page]
FLOOD = 10_600  # more than the 10,000 that a page receives at first
OLD = Context(id="old", type="task")
BELOW = Context(id="below", type="reasoning", parent="old")


@pytest.fixture(scope="module")
def long_log(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InspectorHarness]:
    """A pod with old messages, hostile ones among them, and thousands of newer ones."""
    limits: dict[str, float] = {"messages_per_second": 0, "context_messages_per_second": 0}
    many = {"max_contexts_per_participant": 5000, "history_messages": 60_000}
    room = {"outbox_bytes": 67_108_864}
    with inspector_harness(tmp_path_factory.mktemp("pod"), **limits, **many, **room) as harness:
        ada = harness.join("ada")
        ada.chat("the very first message")
        ada.think("shall we refund it?", OLD)
        ada.think("the order was paid twice", BELOW)
        ada.conclude("paid twice indeed", BELOW)
        for text in HOSTILE:
            ada.chat(text, wait=False)
        ada.conclude("refund it", OLD)
        analyst = Flood(harness, "analyst")
        analyst.send(0, FLOOD)
        ada.receive(f"e{FLOOD - 1}")
        ada.chat("the refund is on its way")
        yield harness
        analyst.close()


def history(client: InspectorClient, **query: Any) -> list[Any]:
    while True:  # a page may be empty and have another (H-05)
        payload = client.receive(client.send("pod/history", query, wait=False))["payload"]
        entries: list[Any] = payload["entries"]
        if entries or "next" not in payload:
            return entries
        query["cursor"] = payload["next"]


def opened(new_page: NewPage, harness: InspectorHarness, **options: Any) -> Page:
    page = sign_in(new_page(), harness, **options)
    expect(page.locator("#log")).to_contain_text("the refund is on its way")
    return page


# Scrolls up until there is nothing older, and returns how many rows were seen.
TO_THE_START = """async () => {
  const log = document.getElementById('log');
  const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  const seen = new Set();
  for (let step = 0; step < 3000; step += 1) {
    const rows = [...log.querySelectorAll('.row')];
    rows.forEach(row => seen.add(row.dataset.key));
    if (log.scrollTop === 0 && log.querySelector('.edge-older.edge-end')) return seen.size;
    log.scrollTop -= 600;
    await frame();
  }
  throw new Error('the start is not reached');
}"""

# Rows that are drawn in another order than their places, or twice.
DISORDER = """() => {
  const rows = [...document.querySelectorAll('#log .row')];
  const tops = rows.map(row => parseFloat(row.style.top));
  const keys = rows.map(row => row.dataset.key);
  return tops.some((top, i) => i && top < tops[i - 1]) || new Set(keys).size !== keys.length;
}"""


def test_the_log_is_read_back_to_its_beginning(
    new_page: NewPage, long_log: InspectorHarness
) -> None:
    page = opened(new_page, long_log)
    assert page.locator("#log").evaluate(TO_THE_START) > 1000
    expect(page.locator("#log")).to_contain_text("the very first message")
    expect(page.locator(".edge-older")).to_have_text("The log begins here.")
    expect(page.locator(".edge-newer")).to_have_count(0)
    assert not page.evaluate(DISORDER)
    page.keyboard.press("g")
    expect(page.locator("#log")).to_contain_text("the refund is on its way")


def test_the_scroll_position_stays_while_older_messages_arrive(
    new_page: NewPage, long_log: InspectorHarness
) -> None:
    page = opened(new_page, long_log)
    moved = page.evaluate("""async () => {
      const log = document.getElementById('log');
      const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
      log.scrollTop = 0;
      await frame();
      const row = [...log.querySelectorAll('.row')].find(one => one.offsetTop >= 0);
      const { key } = row.dataset;
      const place = () => log.querySelector(`[data-key="${key}"]`).getBoundingClientRect().top;
      const before = place();
      const height = log.scrollHeight;
      const places = [];
      for (let step = 0; step < 600 && log.scrollHeight < height + 2000; step += 1) {
        await frame();
        places.push(Math.abs(place() - before));
      }
      if (log.scrollHeight === height) throw new Error('nothing was loaded');
      return Math.max(...places);
    }""")
    assert moved <= 1


def test_all_of_the_log_is_searched_with_count_and_highlight(
    new_page: NewPage, long_log: InspectorHarness
) -> None:
    page = opened(new_page, long_log)
    page.fill("#search", "refund")
    rows = page.locator("#log .row")
    expect(rows).to_have_count(3)
    expect(page.locator("#matches-text")).to_have_text("3 matches")
    expect(rows.first).to_contain_text("shall we refund it?")
    assert page.evaluate("[...CSS.highlights.get('search')].length") == 3
    page.press("#search", "Enter")
    expect(page.locator("#matches-text")).to_have_text("1 of 3 matches")
    page.press("#search", "Enter")
    page.press("#search", "Enter")
    expect(page.locator("#matches-text")).to_have_text("3 of 3 matches")
    page.click("#newer-match")
    expect(page.locator("#matches-text")).to_have_text("2 of 3 matches")
    expect(page.locator("#log .row[data-stop=true]")).to_contain_text("refund it")
    page.fill("#search", "refund kind:conclusion")
    expect(rows).to_have_count(1)
    page.fill("#search", "refund since:tomorrowish")
    expect(page.locator("#search-problem")).to_contain_text("needs a time")
    page.fill("#search", "envelope")
    expect(page.locator("#matches-text")).to_have_text("10,600 matches")
    page.fill("#search", "refund since:1h")
    expect(page.locator("#matches-text")).to_have_text("3 matches")
    page.fill("#search", "refund until:1h")
    expect(page.locator("#log")).to_contain_text("No message matches the search.")
    expect(page.locator("#matches-text")).to_have_text("0 matches")


def test_a_match_is_shown_among_the_messages_around_it(
    new_page: NewPage, long_log: InspectorHarness
) -> None:
    page = opened(new_page, long_log)
    page.fill("#search", '"very first"')
    page.click("text=Show in log")
    expect(page.locator("#search")).to_have_value("")
    expect(page.locator("#log")).to_contain_text("the very first message")
    expect(page.locator("#log")).to_contain_text("refund it")  # a folded context, just after it
    expect(page.locator(".edge-older")).to_have_text("The log begins here.")
    assert not page.evaluate(DISORDER)
    # From here, everything up to the latest can be read.
    walked = page.locator("#log").evaluate("""async log => {
      const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
      for (let step = 0; step < 6000; step += 1) {
        const hole = log.querySelector('.edge-newer');
        if (!hole && log.scrollTop + log.clientHeight >= log.scrollHeight - 1) return step;
        log.scrollTop += 500;
        await frame();
      }
      throw new Error('the end is not reached');
    }""")
    assert walked > 1
    expect(page.locator("#log")).to_contain_text("the refund is on its way")


def test_a_match_in_a_concluded_context_stays_in_view(
    new_page: NewPage, long_log: InspectorHarness
) -> None:
    page = opened(new_page, long_log)
    page.fill("#search", '"paid twice" kind:reflection')
    expect(page.locator("#matches-text")).to_have_text("1 match")
    page.click("text=Show in log")
    # What surrounds it is loaded later: its context and the one above turn out to be concluded.
    expect(page.locator("#log")).to_contain_text("the very first message")
    expect(page.locator("#log")).to_contain_text("paid twice indeed")
    row = page.locator("#log .row", has_text="the order was paid twice")
    expect(row).to_be_in_viewport()
    expect(row).to_be_focused()
    # A browser does not show the focus after a click: the row has a mark of its own.
    expect(page.locator('#log .row[aria-current="true"]')).to_have_count(1)
    expect(row).to_have_attribute("aria-current", "true")
    assert row.evaluate("row => getComputedStyle(row).boxShadow") != "none"
    expect(row).not_to_contain_text("Show in log")
    page.locator("#log .row", has_text="the very first message").focus()
    expect(page.locator('#log .row[aria-current="true"]')).to_have_count(0)


def test_the_log_is_shown_at_a_time(new_page: NewPage, long_log: InspectorHarness) -> None:
    reader = long_log.join("crm")
    (entry,) = history(reader, text='"envelope 245"', order="oldest", limit=1)
    page = opened(new_page, long_log)
    page.click("#go-to-time")
    page.fill("dialog input", "half past nine")
    page.keyboard.press("Enter")
    expect(page.locator("dialog .problem")).to_contain_text("Enter a time")
    moment = page.evaluate("seconds => new Date(seconds * 1000).toISOString()", entry["time"])
    page.fill("dialog input", moment)
    page.keyboard.press("Enter")
    expect(page.locator("dialog")).to_be_hidden()
    focused = page.locator("#log .row:focus")
    expect(focused).to_have_count(1)
    # The first of those that arrived in the same millisecond.
    number = int(focused.inner_text().split("envelope ")[1].split(":")[0])
    (first,) = history(reader, text=f'"envelope {number}"', order="oldest", limit=1)
    assert abs(first["time"] - entry["time"]) < 0.002
    expect(page.locator("#follow")).to_be_visible()
    page.click("#follow")
    expect(page.locator("#log")).to_contain_text("the refund is on its way")


def test_a_context_of_the_past_is_opened_with_tree_timeline_and_conclusion(
    new_page: NewPage, long_log: InspectorHarness
) -> None:
    page = opened(new_page, long_log)
    page.fill("#search", "shall we refund")
    expect(page.locator("#matches-text")).to_have_text("1 match")
    page.click("#log .chip")
    page.fill("#search", "")
    expect(page.locator("#selection")).to_contain_text("Showing only task old")
    opened_tree = page.locator("#tree .tree-item:not(.general)")
    expect(opened_tree.nth(0)).to_contain_text("old")
    expect(opened_tree.nth(0)).to_contain_text("concluded")
    expect(opened_tree.nth(1)).to_contain_text("below")
    expect(page.locator("#log .row")).to_have_count(
        3
    )  # a thought, a folded context, the conclusion
    expect(page.locator("#log .row").nth(1)).to_contain_text("paid twice indeed")
    expect(page.locator("#log .row").last).to_contain_text("refund it")
    page.click("text=Timeline")
    expect(page.locator("#timeline .bar-row")).to_have_count(2)
    # The address leads there.
    again = opened_link(new_page, long_log, page.url.partition("/#")[2])
    expect(again.locator("#selection")).to_contain_text("Showing only task old")
    expect(again.locator("#log .row")).to_have_count(3)
    expect(again.locator("#tree .tree-item:not(.general)").nth(1)).to_contain_text("below")
    again.click("text=Timeline")
    expect(again.locator("#timeline .bar-row")).to_have_count(2)


def opened_link(new_page: NewPage, harness: InspectorHarness, fragment: str) -> Page:
    return sign_in(new_page(), harness, fragment=f"#{fragment}")


def test_hostile_messages_of_the_past_run_no_script(
    new_page: NewPage, long_log: InspectorHarness, problems: list[str]
) -> None:
    page = opened(new_page, long_log)
    page.evaluate("() => { window.hits = 0; window.hit = () => { window.hits += 1; }; }")
    page.fill("#search", "hit")
    expect(page.locator("#matches-text")).to_have_text("60 matches")
    page.locator("#log").evaluate("log => log.scrollTop = 0")
    for button in page.locator("#log .raw-button").all()[:5]:
        button.click()
    assert page.evaluate(FOREIGN) == 0
    page.fill("#search", HOSTILE[5])
    page.fill("#search", "")
    page.locator("#log").evaluate(TO_THE_START)
    assert page.evaluate(FOREIGN) == 0
    assert page.evaluate("window.hits") == 0
    assert problems == []


def test_what_a_model_sees_is_shown_at_a_message(
    new_page: NewPage, long_log: InspectorHarness
) -> None:
    page = opened(new_page, long_log)
    page.evaluate("() => { window.hits = 0; window.hit = () => { window.hits += 1; }; }")
    page.fill("#search", 'kind:conclusion "refund it"')
    expect(page.locator("#matches-text")).to_have_text("1 match")
    page.click("#log .raw-button")
    page.click("text=What did it see?")
    prompt = page.locator("dialog .prompt")
    expect(prompt).to_contain_text("the very first message")
    expect(prompt).to_contain_text("<script>hit()</script>")
    expect(prompt).not_to_contain_text("the refund is on its way")
    expect(prompt.locator("mark").first).to_contain_text("folded")
    expect(prompt.locator(".prompt-facts")).to_contain_text("of 60,000")
    page.select_option("dialog select", "analyst")
    page.fill("dialog .prompt-fields input", "400")
    page.click("dialog >> text=Compute")
    expect(prompt.locator(".prompt-facts")).to_contain_text("of 400; ")
    page.fill("dialog .prompt-fields input", "none")
    page.click("dialog >> text=Compute")
    expect(prompt.locator(".problem")).to_contain_text("budget: must be a number")
    assert page.evaluate(FOREIGN) == 0
    assert page.evaluate("window.hits") == 0
    page.keyboard.press("Escape")
    page.locator("#participants summary").first.click()
    page.locator("#participants").get_by_text("What does it see?").first.click()
    expect(prompt.locator(".prompt-facts")).to_contain_text("10,000 envelopes")


# The last one: the others expect the log to end as it did.
def test_a_message_that_was_found_stays_in_view_while_others_arrive(
    new_page: NewPage, long_log: InspectorHarness
) -> None:
    page = opened(new_page, long_log)
    page.fill("#search", '"on its way"')
    expect(page.locator("#matches-text")).to_have_text("1 match")
    page.click("text=Show in log")
    row = page.locator("#log .row", has_text="the refund is on its way")
    expect(row).to_be_in_viewport()
    writer = long_log.join("crm")
    for number in range(30):
        writer.chat(f"meanwhile {number}")
    expect(page.locator("#follow")).to_be_visible()
    expect(page.locator("#follow-text")).to_contain_text("new")
    expect(row).to_be_in_viewport()
