"""The results of a search: a line for each message, then the contexts that they are in."""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec

from mcpp import HistoryMessage, encode
from mcpp.payloads import ContextInfo
from mcpp.protocol.contexts import ContextTracker
from mcpp_agents.cli.display import Palette, describe, json_line, one_line
from mcpp_agents.history.highlight import Highlighter

_SHOWN_CONTEXTS = 10


def render_entry(message: HistoryMessage) -> str:
    """Return a message with position and time as a line of JSON, safe for a terminal (P-30)."""
    envelope = msgspec.Raw(encode(message.envelope))
    facts = {"position": message.position, "time": message.time, "envelope": envelope}
    return json_line(msgspec.json.encode(facts | ({"erased": True} if message.erased else {})))


class ResultPrinter:
    """Renders messages that were found. Owns what is known about their contexts."""

    def __init__(self, palette: Palette, highlighter: Highlighter) -> None:
        self._palette = palette
        self._highlighter = highlighter
        self._contexts = ContextTracker()
        self._counts: Counter[str] = Counter()

    def render(
        self, messages: Iterable[HistoryMessage], live: Iterable[ContextInfo] = ()
    ) -> Iterator[str]:
        """Yield the lines for messages in their order. `live` are the contexts that exist now."""
        self._contexts.reset(live)
        found = list(messages)
        for message in found:  # not every envelope repeats type and title
            self._contexts.learn(message.envelope)
        for message in found:
            yield self._line(message)
        yield from self._found_contexts()

    def _line(self, message: HistoryMessage) -> str:
        palette = self._palette
        where = f" → {', '.join(message.to)}" if message.to else ""
        if message.context is not None:
            id = message.context.id
            self._counts[id] += 1
            info = self._contexts.contexts.get(id) or ContextInfo(id=id)
            where += f" {palette.context(info)}"
        head = f"{palette.paint(local_time(message.received_at), 2)} {palette.name(message.sender)}"
        said = self._highlighter.paint(self._said(message), lambda word: palette.paint(word, 1, 7))
        return f"{head}{palette.paint(where, 2)}  {said}"

    def _said(self, message: HistoryMessage) -> str:
        if message.erased:
            return "(erased)"
        text = one_line(describe(message.envelope, None))
        if not self._highlighter.found_in(text):  # where a line does not show the word
            # It may be in the title of the context only.
            raw = one_line(f"{message.kind} {bytes(message.envelope.raw_payload).decode()}")
            text = raw if self._highlighter.found_in(raw) else text
        return self._highlighter.snippet(text)

    def _found_contexts(self) -> Iterator[str]:
        if self._counts:
            yield ""
        for id, count in self._counts.most_common(_SHOWN_CONTEXTS):
            info = self._contexts.contexts.get(id) or ContextInfo(id=id)
            title = "" if info.title is None else f" “{one_line(info.title)}”"
            about = f"{info.type or 'context'}{title}, {plural(count, 'message')}"
            yield self._palette.paint(f"mcpp show {id}", 1) + self._palette.paint(f"  {about}", 2)
        if len(self._counts) > _SHOWN_CONTEXTS:
            yield self._palette.paint(f"and {len(self._counts) - _SHOWN_CONTEXTS} more contexts", 2)


def local_time(time: datetime) -> str:
    """Return a time in the zone of this machine, with its date."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
