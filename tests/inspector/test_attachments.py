"""Attachments in the inspector: pictures of safe types, downloads of everything else."""

import json
import re
import struct
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from mcpp import Attachment
from tests.inspector.conftest import sign_in
from tests.inspector.harness import BOUND, InspectorHarness

NewPage = Callable[..., Page]
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
