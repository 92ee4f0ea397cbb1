"""A hundred hostile strings in every field run no script and create no element."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Page, expect

import mcpp
from mcpp.transient import consumed, transient
from tests.inspector.conftest import press, sign_in
from tests.inspector.harness import inspector_harness

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
