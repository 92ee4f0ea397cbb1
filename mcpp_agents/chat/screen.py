"""The chat's screen: a list of rows, notices, a status line and an input line."""

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.data_structures import Point
from prompt_toolkit.document import Document
from prompt_toolkit.filters import has_focus
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import Dimension, HSplit, Layout, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.output import Output
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import get_cwidth

from mcpp_agents.chat.transcript import Transcript, TranscriptRow
from mcpp_agents.cli.display import clean, colour_of

_ANSI: Final = {
    32: "ansigreen", 33: "ansiyellow", 34: "ansiblue", 35: "ansimagenta", 36: "ansicyan",
    92: "ansibrightgreen", 93: "ansibrightyellow", 94: "ansibrightblue",
    95: "ansibrightmagenta", 96: "ansibrightcyan",
}  # fmt: skip
_PAGE_ROWS: Final = 10
_NOTICE_ROWS: Final = 4
_STYLE: Final = Style.from_dict(
    {
        "context": "ansigray",
        "reflection": "italic",
        "conclusion": "bold",
        "mcp-proposal": "ansiyellow bold",
        "mcp-request": "ansigray",
        "mcp-response": "ansigray",
        "system-presence": "ansigray",
        "live": "italic",
        "notice": "ansicyan",
        "status": "reverse",
    }
)


def truncate(text: str, columns: int) -> str:
    """Truncate a line to a number of columns; some characters take two."""
    if get_cwidth(text) <= columns:
        return text
    used = 1  # the ellipsis
    for place, character in enumerate(text):
        used += get_cwidth(character)
        if used > columns:
            return text[:place] + "…"
    return text


def _unfinished_name(text: str) -> str | None:
    """Return the name that a text ends with after @, possibly empty; None if it has none."""
    found = re.search(r"(?<!\w)@([\w.:@-]*)$", text)
    return None if found is None else found[1]


def _common_beginning(names: list[str]) -> str:
    """Return what all names begin with."""
    shortest = min(names, key=len)
    different = (
        place
        for place, character in enumerate(shortest)
        if any(name[place] != character for name in names)
    )
    return shortest[: next(different, len(shortest))]


def _continuation_indent(line: int, wraps: int) -> str:
    return "    " if wraps else ""


class Screen:
    """The chat on a terminal. Owns the selection, the input line and the notice."""

    def __init__(
        self,
        transcript: Transcript,
        status: Callable[[], str],
        *,
        input: Input | None = None,
        output: Output | None = None,
    ) -> None:
        self._transcript = transcript
        self._status = status
        self._notice = ""
        # A key, not an index: rows are added and removed, and `a` must approve the selected one.
        self._selected: str | None = None  # None follows the newest row
        self._last_place = 0
        self._rows: list[TranscriptRow] = []
        self.names: Callable[[], Iterable[str]] = tuple  # who can be addressed
        self.on_line: Callable[[str], object] = lambda line: None
        self.on_approval: Callable[[str], None] = lambda proposal: None
        self._typed = Buffer(multiline=False, accept_handler=self._accept)
        self._list = FormattedTextControl(
            self._fragments, focusable=True, get_cursor_position=self._cursor
        )
        typing = BufferControl(self._typed, [BeforeInput("> ")], focusable=True)
        body = HSplit(
            [
                # Wrapped lines are indented, so that a message cannot imitate the start of a row.
                Window(self._list, wrap_lines=True, get_line_prefix=_continuation_indent),
                Window(
                    FormattedTextControl(lambda: [("class:notice", self._notice)]),
                    height=Dimension(max=_NOTICE_ROWS),
                    dont_extend_height=True,
                    wrap_lines=True,
                ),
                Window(
                    FormattedTextControl(lambda: [("class:status", f" {self._status()} ")]),
                    height=1,
                    style="class:status",
                ),
                Window(typing, height=1),
            ]
        )
        self._layout = Layout(body, focused_element=typing)
        self.application: Application[None] = Application(
            layout=self._layout,
            key_bindings=self._keys(),
            style=_STYLE,
            full_screen=True,
            min_redraw_interval=0.05,  # in a busy pod, not for every envelope
            input=input,
            output=output,
        )

    def notify(self, text: str) -> None:
        """Show a text to this person only, above the status line."""
        self._notice = clean(text)
        self.redraw()

    @property
    def is_choosing(self) -> bool:
        """Whether the list, not the input line, has the focus."""
        return self._layout.has_focus(self._list)

    def redraw(self) -> None:
        """Schedule a redraw."""
        self.application.invalidate()

    def run(self) -> Awaitable[None]:
        """Show the screen until the person leaves."""
        # Ctrl-C is a key binding here; outside of the screen it is the usual signal.
        return self.application.run_async(handle_sigint=False)

    def leave(self) -> None:
        """End the screen."""
        if self.application.is_running:
            self.application.exit()

    def _accept(self, buffer: Buffer) -> bool:
        self._notice = ""
        self._selected = None
        if buffer.text.strip():
            self.on_line(buffer.text)
        return False

    def _fragments(self) -> StyleAndTextTuples:
        self._rows = self._transcript.rows()
        selected = self._place()
        columns = self.application.output.get_size().columns
        shown: StyleAndTextTuples = []
        for place, row in enumerate(self._rows):
            mark = " reverse" if self._selected is not None and place == selected else ""
            shown.append((mark, "  " * row.depth))
            if row.sender:
                name = f"bold {_ANSI[colour_of(row.sender)]}{mark}"
                shown += [(name, row.sender), (mark, "  ")]
            # A context's heading stays on one line; opened, the context is shown in full below.
            text = truncate(row.text, columns - 2 * row.depth) if row.is_heading else row.text
            shown.append((row.style + mark, text))
            shown.append(("", "\n"))
        return shown[:-1]

    def _place(self) -> int:
        """Return the index of the selected row, or if it is gone, its last index."""
        last = max(len(self._rows) - 1, 0)
        if self._selected is None:
            return last
        for place, row in enumerate(self._rows):
            if row.key == self._selected:
                self._last_place = place
                return place
        return min(self._last_place, last)

    def _select(self, place: int) -> None:
        if self._rows:
            self._last_place = min(max(place, 0), len(self._rows) - 1)
            self._selected = self._rows[self._last_place].key

    def _next_decision(self) -> int:
        """Return the newest row that waits for a decision, or the last one."""
        self._rows = self._transcript.rows()
        proposals, me = self._transcript.proposals, self._transcript.me
        waiting = [
            place
            for place, row in enumerate(self._rows)
            if row.proposal is not None and row.sender and proposals[row.proposal].waits_for(me)
        ]
        return waiting[-1] if waiting else self._place()

    def _cursor(self) -> Point:
        return Point(0, self._place())

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        in_list = has_focus(self._list)

        @keys.add("c-c")
        @keys.add("c-d")
        def _(event: KeyPressEvent) -> None:
            event.app.exit()

        @keys.add("tab")
        def _(event: KeyPressEvent) -> None:
            if self.is_choosing:
                self._focus_input()
            elif not self._complete_name():
                self._focus_list()

        def move(key: str, to: Callable[[int], int]) -> None:
            @keys.add(key, filter=in_list)
            def _(event: KeyPressEvent) -> None:
                self._select(to(self._place()))

        move("up", lambda place: place - 1)
        move("down", lambda place: place + 1)
        move("pageup", lambda place: place - _PAGE_ROWS)
        move("pagedown", lambda place: place + _PAGE_ROWS)
        move("home", lambda place: 0)
        move("end", lambda place: len(self._rows) - 1)

        @keys.add("enter", filter=in_list)
        def _(event: KeyPressEvent) -> None:
            row = self._selected_row()
            if row is not None and row.opens is not None:
                self._transcript.toggle(row.opens)

        @keys.add("a", filter=in_list)
        def _(event: KeyPressEvent) -> None:
            self._approve()

        @keys.add("r", filter=in_list)
        def _(event: KeyPressEvent) -> None:
            self._begin_rejection()

        @keys.add("/", filter=in_list)
        def _(event: KeyPressEvent) -> None:
            self._focus_input()
            self._typed.insert_text("/")

        return keys

    def _complete_name(self) -> bool:
        """Complete the name after @ before the cursor; return whether there is one to complete."""
        typed = _unfinished_name(self._typed.document.text_before_cursor)
        if typed is None:
            return False
        found = sorted(name for name in self.names() if name.lower().startswith(typed.lower()))
        if not found:
            self.notify(f"No participant's name begins with @{typed}.")
            return True
        whole = _common_beginning(found)
        end = " " if len(found) == 1 else ""
        self._typed.delete_before_cursor(len(typed))
        self._typed.insert_text((whole if len(whole) > len(typed) or end else typed) + end)
        if not end:
            self.notify(f"Participants: {', '.join('@' + name for name in found)}.")
        return True

    def _focus_list(self) -> None:
        self._layout.focus(self._list)
        self._select(self._next_decision())

    def _focus_input(self) -> None:
        self._layout.focus(self._typed)
        self._selected = None

    def _selected_row(self) -> TranscriptRow | None:
        return self._rows[self._place()] if self._rows else None

    def _approve(self) -> None:
        if (proposal := self._selected_proposal()) is not None:
            self._notice = ""
            self.on_approval(proposal)

    def _begin_rejection(self) -> None:
        """Put a `/reject` command into the input line, so that a reason can be added."""
        if (proposal := self._selected_proposal()) is not None:
            line = f"/reject {self._transcript.number(proposal)} {self._typed.text}"
            self._typed.document = Document(line)
            self._focus_input()
            self.notify("Add a reason if you like; Enter rejects the proposal.")

    def _selected_proposal(self) -> str | None:
        row = self._selected_row()
        if row is None or row.proposal is None:
            self.notify("Select a proposal (◆) first.")
            return None
        return row.proposal
