"""Texts that are being written, on the terminal."""

import io
import sys

import pytest

import mcpp
from mcpp_agents.chat.transcript import Transcript
from mcpp_agents.cli.display import Palette
from mcpp_agents.tail.line_printer import LinePrinter

pytestmark = pytest.mark.rule("P-71")


def part(offset: int, text: str, *, sender: str = "writer", about: str = "final") -> mcpp.Envelope:
    payload = {"offset": offset, "text": text}
    return mcpp.new_envelope("live/text", payload, sender=sender, correlation_id=about)


def final(text: str) -> mcpp.Envelope:
    return mcpp.new_envelope("chat", {"text": text}, sender="writer", id="final")


def texts(transcript: Transcript) -> list[tuple[str, str]]:
    return [(row.sender, row.text) for row in transcript.rows()]


def test_a_chat_shows_a_text_while_it_grows_and_then_the_message() -> None:
    transcript = Transcript("anna")
    transcript.add_part(part(0, "Hello \x1b[31m"), 0.0)
    transcript.add_part(part(11, "wor\nld"), 0.0)
    first, second = texts(transcript)
    assert first[0] == "writer"
    assert "\x1b" not in first[1]
    assert second == ("", "ld▍")
    transcript.add(final("Hello world"))
    assert texts(transcript) == [("writer", "Hello world")]
    transcript.add_part(part(0, "late"), 0.0)
    assert len(texts(transcript)) == 1
    transcript.add_part(part(0, "more", about="other"), 0.0)
    assert transcript.live.expire(60.0)
    assert len(texts(transcript)) == 1


def test_tail_shows_a_growing_text_on_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "20")
    printer = LinePrinter(Palette(coloured=False))
    printer.print(part(0, "one two three four five six"))
    assert len(screen.getvalue()) == 19
    assert screen.getvalue().endswith("four five six")
    printer.print(part(27, "\nseven 漢字"))
    written = screen.getvalue().rpartition("\r\x1b[K")[2]
    assert "\n" not in written
    assert written.endswith("seven 漢字")
    printer.print(final("one two"))
    after = screen.getvalue().rpartition("\r\x1b[K")[2]
    assert after.endswith("writer  one two\n")
    printer.print(final("again"))
    assert not screen.getvalue().endswith("\x1b[K")
