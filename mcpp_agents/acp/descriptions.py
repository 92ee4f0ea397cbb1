"""What an agent reports, as text for people: tool calls, changes of files, plans."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from acp.schema import (
    ContentToolCallContent,
    EmbeddedResourceContentBlock,
    FileEditToolCallContent,
    PlanEntry,
    ResourceContentBlock,
    TextContentBlock,
    TextResourceContents,
    ToolCallProgress,
    ToolCallStart,
    ToolCallUpdate,
)

from mcpp.payloads import Preview

_CONTEXT_LINES: Final = 3
_MAX_TITLE_CHARS: Final = 300
_MAX_PLAN_ENTRIES: Final = 50
_MARKS: Final = {"completed": "x", "in_progress": ">", "pending": " "}

ToolUpdate = ToolCallStart | ToolCallProgress | ToolCallUpdate


@dataclass(slots=True)
class ToolCallState:
    """A tool call of the agent, as its updates describe it so far."""

    id: str
    folder: str = ""  # paths in it are shown without it
    title: str = ""
    kind: str = "other"
    status: str = "pending"
    content: Sequence[Any] = ()
    paths: Sequence[str] = ()
    input: Any = None
    reported: set[str] = field(default_factory=set)  # what is in the log already

    def update(self, change: ToolUpdate) -> None:
        """Apply an update: what it does not mention stays."""
        self.title = one_line(below(self.folder, change.title or "")) or self.title
        self.kind = change.kind or self.kind
        self.status = change.status or self.status
        self.content = self.content if change.content is None else change.content
        if change.locations:
            self.paths = [one_line(each.path) for each in change.locations[:20]]
        self.input = change.raw_input or self.input

    def forget_content(self) -> None:
        """Keep only what it is called: the rest is in the log, and may be large."""
        self.content, self.input = (), None

    @property
    def name(self) -> str:
        """The call on one line, such as `edit notes.md`."""
        title = self.title or self.id[:_MAX_TITLE_CHARS]
        # Claude Code, Codex and Gemini CLI write a sentence, opencode only the path.
        is_sentence = title[:1].isupper() and " " in title
        says_kind = self.kind == "other" or is_sentence or title.startswith(self.kind)
        return title if says_kind else f"{self.kind} {title}"

    @property
    def command(self) -> str | None:
        """The command that it would run, where its input says so."""
        given = self.input.get("command") if isinstance(self.input, dict) else None
        if isinstance(given, list):
            given = " ".join(map(str, given))
        return given if isinstance(given, str) else None

    @property
    def changes(self) -> list[FileEditToolCallContent]:
        """The changes of files that it reports."""
        return [each for each in self.content if isinstance(each, FileEditToolCallContent)]

    def result(self, limit: int) -> str:
        """Return what it has done: its texts, and its changes as a diff."""
        texts = [
            text_of(each.content)
            for each in self.content
            if isinstance(each, ContentToolCallContent)
        ]
        texts += [
            diff(below(self.folder, each.path), each.old_text, each.new_text)
            for each in self.changes
        ]
        return shorten("\n".join(filter(None, texts)), limit)

    def preview(self, limit: int) -> Preview | None:
        """Return what it would change, before and after; a cut text says that it is cut."""
        parts = [changed_part(each.old_text or "", each.new_text) for each in self.changes]
        if not parts:
            return None
        if len(parts) > 1:  # say which text belongs to which file
            names = [f"{one_line(below(self.folder, each.path))}:\n" for each in self.changes]
            parts = [(name + a, name + b) for name, (a, b) in zip(names, parts, strict=True)]
        before, after = ("\n".join(side) for side in zip(*parts, strict=True))
        return Preview(before=shorten(before, limit), after=shorten(after, limit))

    def described(self, limit: int) -> dict[str, Any]:
        """Return it as JSON, for the log."""
        return {"id": one_line(self.id), **self.action(limit), "status": self.status}

    def action(self, limit: int) -> dict[str, Any]:
        """Return what it does as JSON; changes of files are shown as such, instead of its input."""
        known: dict[str, Any] = {"title": self.title, "kind": self.kind}
        if self.input and not self.changes:
            text = json.dumps(self.input, ensure_ascii=False, default=str)
            known["input"] = self.input if len(text) <= limit else shorten(text, limit)
        return known


def below(folder: str, text: str) -> str:
    """Return a text in which paths below the folder are shown without it."""
    if len(folder) < 2:
        return text
    # opencode leaves out the first slash of the paths in its titles.
    shown = text.replace(f"{folder}/", "")
    return shown.removeprefix(f"{folder[1:]}/")


def text_of(block: Any) -> str:
    """Return the text of a content block; other media are named."""
    if isinstance(block, TextContentBlock):
        return block.text
    if isinstance(block, ResourceContentBlock):
        return f"[{one_line(block.uri)}]"
    if isinstance(block, EmbeddedResourceContentBlock):
        inside = block.resource
        return inside.text if isinstance(inside, TextResourceContents) else f"[{inside.uri}]"
    return f"[{getattr(block, 'type', 'other')}]"


def plan_text(entries: Sequence[PlanEntry]) -> str:
    """Return a plan as a list with marks."""
    lines = [
        f"- [{_MARKS.get(each.status, ' ')}] {one_line(each.content)}"
        for each in entries[:_MAX_PLAN_ENTRIES]
    ]
    more = len(entries) - len(lines)
    return "\n".join(["Plan:", *lines, *([f"… and {more} more"] if more else [])])


def changed_part(old: str, new: str) -> tuple[str, str]:
    """Return two texts without the lines that they begin and end with in common.

    A few of those lines are kept around the change. Where lines are left out, a line says so.
    """
    a, b = old.splitlines(), new.splitlines()
    shorter = min(len(a), len(b))
    start = 0
    while start < shorter and a[start] == b[start]:
        start += 1
    end = 0
    while end < shorter - start and a[-1 - end] == b[-1 - end]:
        end += 1
    first, last = max(0, start - _CONTEXT_LINES), max(0, end - _CONTEXT_LINES)
    return _between(a, first, last), _between(b, first, last)


def diff(path: str, old: str | None, new: str) -> str:
    """Return a change as removed and added lines."""
    a, b = changed_part(old or "", new)
    removed = [f"- {line}" for line in a.splitlines()]
    added = [f"+ {line}" for line in b.splitlines()]
    return "\n".join([f"{one_line(path)}:", *removed, *added])


def shorten(text: str, limit: int) -> str:
    """Return a text of at most about `limit` characters, which says how much is missing."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n… (cut: {len(text) - limit} more characters are not shown)"


def one_line(text: str) -> str:
    """Return a text on one line, of limited length."""
    line = " ".join(text[: 4 * _MAX_TITLE_CHARS].split())
    return line if len(line) <= _MAX_TITLE_CHARS else f"{line[: _MAX_TITLE_CHARS - 1]}…"


def _between(lines: list[str], first: int, last: int) -> str:
    above = [f"… ({first} equal lines)"] if first else []
    below = [f"… ({last} equal lines)"] if last else []
    return "\n".join([*above, *lines[first : len(lines) - last], *below])
