"""A recorded log, against which an agent can be tested.

async def test_the_incident_of_monday(recording):
    await recording("incident.jsonl").check(agent)

What others said is replayed, in a pod of its own, and what the agent says is compared with what it
said in the recording. `mcpp tail --json`, `mcpp search --json` and `mcpp log export` write
recordings.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from mcpp.agent.participant import Participant
from mcpp.client.history import HistoryMessage
from mcpp.client.message import Message
from mcpp.errors import DecodeError, McppError
from mcpp.filters import Filter, kind
from mcpp.kinds import NOTIFICATION
from mcpp.protocol.codec import decode, encode
from mcpp.protocol.envelope import Envelope
from mcpp.testing.comparison import COMPARED_BY, Comparison

Source: TypeAlias = str | Path | Iterable[str | bytes | Envelope | Message]

# Progress and cancellations depend on time, and so does how often a runtime asks for tools.
NOT_COMPARED: Filter = kind(f"{NOTIFICATION}:*") | kind("mcp/*:tools/list")


class RecordingError(McppError):
    """A recording cannot be used: `place` says where, `reason` why."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(place, reason)
        self.place = place
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Divergence:
    """A difference between a recording and a run, with its position in the recording.

    `missing`: the agent did not say what was recorded. `different`: it said something else of that
    kind. `unexpected`: it said something that was not recorded; the position is how far the
    recording had been replayed by then.
    """

    reason: Literal["missing", "different", "unexpected"]
    position: int
    recorded: Envelope | None = None
    said: Envelope | None = None
    diff: str = ""

    def __str__(self) -> str:
        shown = self.recorded or self.said
        what = "" if shown is None else f" {shown.kind}"
        details = self.diff or ("" if shown is None else encode(shown, indent=2).decode())
        return f"at position {self.position}, {self.reason}{what}\n{details}"


class DivergedError(McppError, AssertionError):
    """An agent did not say what was recorded."""

    def __init__(self, recording: str, divergences: list[Divergence]) -> None:
        super().__init__(recording, divergences)
        self.recording = recording
        """The name of the recording."""
        self.divergences = divergences
        """Each difference, in the order of the recording."""

    def __str__(self) -> str:
        count = len(self.divergences)
        head = f"{count} divergence{'s'[: count != 1]} from {self.recording}"
        return "\n\n".join([head, *map(str, self.divergences)])


class RecordedEnvelope(NamedTuple):
    """An envelope of a recording and its position: in the log, or else in the recording."""

    position: int
    envelope: Envelope


class Recording:
    """A recorded log: a file, or envelopes and messages in the log's order.

    Args:
        source: the path of a file, or an iterable of lines, envelopes or messages.

    Raises RecordingError for a line that is not of a recording, and OSError.
    """

    def __init__(self, source: Source) -> None:
        self.name = str(source) if isinstance(source, str | Path) else "the recording"
        self.entries = list(self._read(source))

    @property
    def envelopes(self) -> list[Envelope]:
        """The recorded envelopes, in the log's order."""
        return [entry.envelope for entry in self.entries]

    def save(self, path: str | Path) -> None:
        """Write the recording to a file, as `mcpp tail --json` would."""
        lines = (msgspec.json.format(encode(one), indent=-1) for one in self.envelopes)
        Path(path).write_bytes(b"".join(line + b"\n" for line in lines))

    async def check(
        self,
        agent: Participant,
        *,
        compare: Comparison = "structure",
        ignore: Filter = NOT_COMPARED,
        seconds: float = 2.0,
    ) -> None:
        """Run an agent against the recording; it must say what was recorded.

        Args:
            agent: the agent; its name tells which of the recorded envelopes are its own.
            compare: what must be equal: `kind` (and addressees), `structure` (also context,
                correlation and the payload's shape), `exact` (also the payload), or a function of
                the recorded and the new envelope.
            ignore: which envelopes of the agent do not count; by default notifications and
                requests for lists of tools, with their answers.
            seconds: how long to wait for what was recorded.

        Raises DivergedError with every difference, RecordingError if nothing of the agent was
        recorded, and what a handler of the agent raises.
        """
        found = await self.replay(agent, compare=compare, ignore=ignore, seconds=seconds)
        if found:
            raise DivergedError(self.name, found)

    async def replay(
        self,
        agent: Participant,
        *,
        compare: Comparison = "structure",
        ignore: Filter = NOT_COMPARED,
        seconds: float = 2.0,
    ) -> list[Divergence]:
        """Run an agent against the recording like `check`, and return the differences."""
        from mcpp.testing.replay import ReplayRun  # it needs this module

        if not callable(compare) and compare not in COMPARED_BY:
            raise ValueError(f"compare must be one of {COMPARED_BY} or a function, not {compare!r}")
        if all(one.sender != agent.name for one in self.envelopes):
            raise RecordingError(self.name, f"it has no envelope of {agent.name!r} to compare with")

        run = ReplayRun(self.name, self.entries, agent, compare=compare, ignore=ignore)
        return await run.run(seconds)

    def _read(self, source: Source) -> Iterator[RecordedEnvelope]:
        items: Iterable[Any] = (
            Path(source).read_bytes().split(b"\n") if isinstance(source, str | Path) else source
        )
        for index, item in enumerate(items):
            if isinstance(item, HistoryMessage):
                yield RecordedEnvelope(item.position, item.envelope)
            elif isinstance(item, Message):
                yield RecordedEnvelope(index, item.envelope)
            elif isinstance(item, Envelope):
                yield RecordedEnvelope(index, item)
            elif item.strip():
                try:
                    yield from _read_line(item, index)
                except DecodeError as error:
                    raise RecordingError(f"{self.name}, line {index + 1}", str(error)) from None


class _Line(msgspec.Struct):
    """A line of any form: of an export, with `text`; of a search, with `envelope`; an envelope."""

    format: str | None = None
    state: msgspec.Raw = msgspec.Raw()
    position: int | None = None
    text: str | None = None
    envelope: msgspec.Raw = msgspec.Raw()


_read_form = msgspec.json.Decoder(_Line).decode


def _read_line(line: str | bytes, index: int) -> Iterator[RecordedEnvelope]:
    try:
        form = _read_form(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        form = _Line()  # `decode` says what is wrong
    position = index if form.position is None else form.position
    if form.position is not None and form.text is not None:
        yield RecordedEnvelope(position, decode(form.text))
    elif form.position is not None and bytes(form.envelope):
        yield RecordedEnvelope(position, decode(bytes(form.envelope)))
    elif form.format is None and not bytes(form.state):
        yield RecordedEnvelope(index, decode(line))
