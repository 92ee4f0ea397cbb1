"""Contrast of all text in light and dark mode, as measured by WCAG 2.2."""

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.inspector.conftest import sign_in
from tests.inspector.harness import InspectorHarness
from tests.inspector.scenario import run_scenario

# For each element with own text: the contrast between its colour and its background.
MEASURE = """() => {
  const paint = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const known = new Map();
  const rgba = text => known.get(text) ?? known.set(text, read(text)).get(text);
  const read = text => {
    paint.clearRect(0, 0, 1, 1); paint.fillStyle = text; paint.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = paint.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, under) => top.slice(0, 3).map((c, i) => c * top[3] + under[i] * (1 - top[3]));
  const light = ([r, g, b]) => {
    const part = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = element => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      layers.push(rgba(getComputedStyle(at).backgroundColor));
    }
    return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    const box = element.getBoundingClientRect();
    const skipped = '.visually-hidden, :disabled, [hidden], noscript';
    if (!own || !box.width || element.closest(skipped)) continue;
    const style = getComputedStyle(element);
    if (style.visibility === 'hidden') continue;
    const ground = behind(element);
    const colour = over(rgba(style.color), ground);
    const [one, other] = [light(colour), light(ground)].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    found.push([ratio, element.className, element.textContent.slice(0, 30)]);
  }
  return found.sort((a, b) => a[0] - b[0]);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_a_contrast_of_at_least_four_and_a_half(
    new_page: Callable[..., Page], own_harness: InspectorHarness, scheme: str
) -> None:
    harness = own_harness
    page = new_page(1280, 3000, scheme)
    page.add_init_script("localStorage.setItem('mcpp.settings', JSON.stringify({hints: true}))")
    page.goto(harness.url)
    expect(page.locator("#sign-in")).to_be_visible()
    check(page)
    sign_in(page, harness)
    run_scenario(harness)
    expect(page.locator("#log .tone-proposal")).to_have_count(1)
    page.click("#log .accordion button")
    page.fill("#filter", "wrong")
    page.click("#log .raw-button >> nth=0")
    expect(page.locator("#log .raw")).to_have_count(1)
    harness.stop()
    expect(page.locator("#status")).to_contain_text("reconnecting")
    harness.start()
    expect(page.locator("#log .mark")).to_have_count(1)
    check(page)
    page.click("[data-part=timeline]")
    expect(page.locator("#timeline .bar-row")).to_have_count(3)
    check(page)
    page.click("#settings-button")
    page.click("dialog summary")
    check(page)


def check(page: Page) -> None:
    found: list[Any] = page.evaluate(MEASURE)
    assert len(found) > 5
    assert [one for one in found if one[0] < 4.5] == []
