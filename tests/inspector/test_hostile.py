"""Hostile strings in every field, and hostile attachments, run no script and create no element."""

import json
import re
import struct
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

import mcpp
from mcpp import Attachment
from mcpp.transient import consumed, transient
from tests.inspector.conftest import press, sign_in
from tests.inspector.harness import BOUND, InspectorHarness, inspector_harness

NewPage = Callable[..., Page]
CALLS = ("hit()", "alert(1)", "top.hit()", "window['hit']()", "import('/inspector/x.js')")
SHAPES = (
    "<script>{}</script>",
    "</script><script>{}</script>",
    "<img src=x onerror={}>",
    "<img/src=x/onerror={}>",
    "<svg onload={}>",
    "<svg/onload={}>",
    "<iframe srcdoc='<script>parent.{}</script>'>",
    "<a href=javascript:{}>x</a>",
    "javascript:{}",
    '"><script>{}</script>',
    "'><img src=x onerror={}>",
    '" onmouseover={} x="',
    "</pre><script>{}</script><pre>",
    "</textarea><script>{}</script>",
    "<style>@import 'javascript:{}'</style>",
    "<details open ontoggle={}>",
    "<math><mtext></p><script>{}</script>",
    "${{{}}}",
    "{{{{constructor.constructor('{}')()}}}}",
    "\u202e<script>{}</script>\u0000",
)
HOSTILE = [shape.format(call) for shape in SHAPES for call in CALLS]

# Counts elements that could run or load something and are not the page's own.
FOREIGN = """() => [...document.querySelectorAll(
  'script, iframe, object, embed, img, svg, math, style, link, base, a, video, audio'
)].filter(element =>
  !['/inspector/app.js', '/inspector/icon.svg', '/inspector/style.css'].includes(
    element.getAttribute('src') ?? element.getAttribute('href'))
).concat([...document.querySelectorAll('*')].filter(element =>
  [...element.attributes].some(one => one.name.startsWith('on')))).length"""

# Scrolls through the whole log, opens some rows, and returns how many were drawn and collapsed.
WALK = """async () => {
  const log = document.getElementById('log');
  const frame = () => new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  const seen = new Set();
  const folded = new Set();
  const made = 'script, iframe, object, embed, img, svg, math, style, link, a, form, input';
  for (let top = 0, step = 0; top < log.scrollHeight && step < 200; top += 4000, step += 1) {
    log.scrollTop = top;
    await frame();
    for (const name of ['raw-button', 'accordion-head', 'twisty']) {
      [...log.querySelectorAll('.' + name)].slice(0, 3).forEach(button => button.click());
    }
    await frame();
    log.querySelectorAll('.row').forEach(row => seen.add(row.dataset.key));
    log.querySelectorAll('.accordion').forEach(one => folded.add(one.parentElement.dataset.key));
    if (log.querySelector(made)) throw new Error('a string has become an element');
  }
  return [seen.size, folded.size];
}"""


def ascii_only(text: str) -> str:
    """Return a text that is valid in a kind: printable ASCII without spaces."""
    return "".join(one for one in text.replace(" ", "/") if "!" <= one <= "~")[:90]


def test_there_are_a_hundred_hostile_strings() -> None:
    assert len(set(HOSTILE)) == 100


def test_hostile_strings_in_every_field_run_nothing(
    new_page: Callable[..., Page], tmp_path: Path, problems: list[str]
) -> None:
    limits = {"messages_per_second": 0, "context_messages_per_second": 0}
    with inspector_harness(tmp_path, **limits) as harness:
        page = new_page(1280, 6000)
        page.on("dialog", lambda dialog: problems.append(f"a dialog: {dialog.message}"))
        page.add_init_script("window.hits = 0; window.hit = () => { window.hits += 1; }")
        page.add_init_script(
            "try { localStorage.setItem('mcpp.settings', JSON.stringify({hints: true})) } catch {}"
        )
        link = f"#filter={quote('<img src=x onerror=hit()>')}&search=&context={quote(HOSTILE[0])}"
        sign_in(page, harness, fragment=link)
        analyst, crm = harness.join("analyst"), harness.join("crm")
        calls: list[str] = []
        for number, text in enumerate(HOSTILE):
            quiet: dict[str, Any] = {"wait": False}
            name, inside = ascii_only(text), f"k{number % 7}"
            analyst.send("chat", {"text": text, "format": "markdown"}, **quiet)
            analyst.send("reflection", {"thought": text}, context=inside, **quiet)
            noted = mcpp.new_context("task", id=f"c{number}", metadata={text: text})
            analyst.send("conclusion", {"decision": text}, context=noted, **quiet)
            analyst.send(name, {text: text, "deep": [{text: [text]}]}, **quiet)
            analyst.send("chat", {text: text}, **quiet)
            params = {"name": name, "arguments": {text: text}}
            request = {"jsonrpc": "2.0", "id": text, "method": "tools/call", "params": params}
            call = analyst.send(f"mcp/request:tools/call:{name}", request, to="crm")
            calls.append(call)
            result = {"content": [{"type": "text", "text": text}]}
            crm.answer(call, name, transient(result, text), **quiet)
            error = {"error": {"code": 1, "message": text}}
            crm.send("mcp/response:tools/call:x", error, about=call, **quiet)
            proposal = {"method": "tools/call", "params": params}
            about = analyst.send(f"mcp/proposal:tools/call:{name}", proposal, to="crm", **quiet)
            crm.send("mcp/reject", {"reason": text, "text": text}, about=about, **quiet)
        crm.chat("all is answered")
        store = analyst.ask("store", {}, "crm")
        crm.answer(store, "store", consumed({"content": []}, consumes=calls))
        analyst.chat("the last one")
        expect(page.locator("#log")).to_contain_text("the last one")
        drawn, collapsed = page.evaluate(WALK)
        assert drawn > 900
        assert collapsed == 100
        assert page.evaluate(FOREIGN) == 0
        page.click("[data-part=timeline]")
        page.fill("#search", HOSTILE[2])
        page.fill("#filter", HOSTILE[3])
        press(page.locator("#proposals").get_by_text("Edit…", exact=True).first)
        page.click("dialog >> text=Cancel")
        assert page.evaluate(FOREIGN) == 0
        assert page.evaluate("window.hits") == 0
        assert problems == []


# --- attachments ----------------------------------------------------------------------------------

SCRIPT = b"<svg xmlns='http://www.w3.org/2000/svg'><script>document.title='owned'</script></svg>"


def png(width: int, height: int) -> bytes:
    """Return a picture with a gradient."""
    rows = b"".join(
        b"\0" + bytes(value for x in range(width) for value in (x % 256, y % 256, 160))
        for y in range(height)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    )


def upload(harness: InspectorHarness, participant: str, content: bytes, **facts: Any) -> Attachment:
    request = urllib.request.Request(
        f"{harness.url.rstrip('/')}/blob",
        data=content,
        method="POST",
        headers={"Authorization": f"Bearer {harness.token(participant)}"},
    )
    with urllib.request.urlopen(request, timeout=BOUND) as answer:
        found = json.load(answer)
    return Attachment(found["hash"], found["size"], **facts)


@pytest.mark.rule("P-73", "G-62")
def test_pictures_are_shown_and_other_content_is_only_saved(
    new_page: NewPage, harness: InspectorHarness, tmp_path: Path
) -> None:
    page = new_page()
    sign_in(page, harness, "ada")
    analyst = harness.join("analyst")
    picture = upload(harness, "analyst", png(300, 200), media_type="image/png", name="plan.png")
    svg = upload(harness, "analyst", SCRIPT, media_type="image/svg+xml", name="logo.svg")
    forged = Attachment(svg.hash, svg.size, "image/png", "really.png")
    html = Attachment(svg.hash, svg.size, "text/html", None)
    analyst.send("chat", {"text": "the plan"}, attachments=[picture, svg, html])
    row = page.locator(".row", has_text="the plan")
    items = row.locator(".attachments li")
    expect(items).to_have_count(3)
    image = row.locator("img.picture")
    expect(image).to_have_count(1)
    expect(image).to_have_js_property("naturalWidth", 300)
    expect(items.nth(0)).to_contain_text("plan.png image/png")
    analyst.send("chat", {"text": "not a picture"}, attachments=[forged])
    lying = page.locator(".row", has_text="not a picture").locator("img.picture")
    expect(lying).to_have_attribute("src", re.compile("^blob:"))
    expect(lying).to_have_js_property("naturalWidth", 0)
    assert page.title() != "owned"
    with page.expect_download() as saving:
        items.nth(1).get_by_role("button").click()
    assert saving.value.suggested_filename == "logo.svg"
    saving.value.save_as(tmp_path / "saved")
    assert (tmp_path / "saved").read_bytes() == SCRIPT
    page.screenshot(path=tmp_path / "attachments.png")


@pytest.mark.rule("P-73")
def test_content_that_is_gone_is_reported(new_page: NewPage, harness: InspectorHarness) -> None:
    page = new_page()
    sign_in(page, harness, "ada")
    analyst = harness.join("analyst")
    picture = upload(harness, "analyst", png(20, 20), media_type="image/png", name="a.png")
    page.route("**/blob/*", lambda route: route.fulfill(status=404, body="gone"))
    analyst.send("chat", {"text": "see"}, attachments=[picture])
    row = page.locator(".row", has_text="see")
    expect(row.locator(".attachments .problem")).to_contain_text("no longer has it")
