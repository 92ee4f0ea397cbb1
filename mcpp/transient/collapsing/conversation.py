"""Collapses consumed tool results in the messages of any MCP client, without a pod.

    conversation = Conversation()
    while True:
        reply = client.messages.create(messages=conversation.collapse(messages), …)
        messages.append({"role": "assistant", "content": reply.content})
        for call in tool_calls_of(reply):
            result = await session.call_tool(call.name, call.input)
            conversation.add_result(call.name, call.id, result)
            messages.append(…)

The messages are the log: their order tells which result a call could have used, and whether the
model has read it. The rules are those of a pod's log, by the same code (T-25).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, overload

import msgspec

from mcpp.tokens import Counter, estimate
from mcpp.transient.calls import failure
from mcpp.transient.collapsing.cache_policy import CachePolicy, CollapsePlanner
from mcpp.transient.collapsing.expansion import EXPAND
from mcpp.transient.collapsing.lifecycle import (
    Badge,
    Matching,
    TransientResult,
    TransientResults,
    collapsed_text,
)
from mcpp.transient.collapsing.messages import (
    CallPart,
    Place,
    ResultPart,
    TextPart,
    part_tokens,
    read_parts,
    replace_results,
)
from mcpp.transient.marks import transient
from mcpp.transient.results import Result, ResultModel, as_json, encoded

_CLIENT: Final = "client"  # names of servers get a prefix, so none is equal
_SERVER: Final = "server:"
_BY_SERVER: Final = Matching()

_MAX_LEVELS: Final = 64
"""Nesting of a result or of arguments, as in an envelope. Encoders and decoders recurse, and how
far they can depends on the caller's stack: a result that was encoded could fail to decode."""


class ConversationCall(msgspec.Struct, eq=False):
    """A call in a conversation and its result."""

    id: str
    tool: str
    server: str  # the caller, if the client answered the call itself
    caller: str
    data: bytes  # the result, encoded so that nothing can change it
    arguments: Any = None
    index: int = -1
    answered_at: int = -1
    context_id: str | None = None

    @property
    def response_id(self) -> str:
        """The id of the result, which is the call's."""
        return self.id

    @property
    def result(self) -> Mapping[str, Any]:
        """The complete result."""
        return self.original()

    @property
    def is_error(self) -> bool:
        """Whether the call failed."""
        return bool(self.original().get("isError"))

    def original(self) -> dict[str, Any]:
        """Return a new copy of the complete result."""
        decoded: dict[str, Any] = msgspec.json.decode(self.data)
        return decoded

    def deduplication_key(self) -> tuple[object, ...]:
        """Return a key shared by calls with equal server, tool and arguments."""
        return (self.server, self.tool, encoded(self.arguments, order="sorted", enc_hook=repr))


class _PlacedResult(msgspec.Struct):
    tracked: TransientResult
    position: int
    size: int

    def tokens(self, _: Counter, /) -> int:
        return self.size


class Conversation:
    """The transient results in one conversation of a model. Owns copies of the results.

    Args:
        matching: which result a consumer uses: the oldest or the newest, and whether hints pair
            tools of different servers.
        cache: the prices of a prompt cache, by which collapses are decided; None collapses as soon
            as possible.
        counter: counts the tokens in a text.
    """

    def __init__(
        self,
        *,
        matching: Matching = _BY_SERVER,
        cache: CachePolicy | None = None,
        counter: Counter = estimate,
    ) -> None:
        self._cache = cache
        self._count = counter
        self._results = TransientResults(matching)
        self._added: dict[str, ConversationCall] = {}  # not yet seen in the messages
        self._requested: dict[str, tuple[int, Any]] = {}  # place and arguments, by call
        self._read: set[str] = set()  # calls whose results have been processed
        self._expanded: list[bytes] = []  # returned by `expand` and not yet added
        self._clock = 0
        self._collapsed: set[str] = set()

    def add_result(
        self, tool: str, call_id: str, result: Result | ResultModel, *, server: str = ""
    ) -> None:
        """Add the result of a call; a second one for the same call is ignored (T-13).

        `tool` is the tool's name at its server, `call_id` the call's id in the messages, and
        `server` any name for the server, for clients that have several; what `expand` returned is
        the client's own, whatever the name (T-05, T-12). Invalid Unicode is replaced by U+FFFD; a
        result that nests deeper than 64 levels is taken for a failed one (T-08).
        """
        if call_id in self._read or call_id in self._added:
            return
        if _is_too_deep(result):
            given: Result = failure("The result is nested too deeply.")
        else:
            given = as_json(result)
        owner = _CLIENT if tool == EXPAND and self._has_expanded(given) else _SERVER + server
        self._added[call_id] = ConversationCall(call_id, tool, owner, _CLIENT, encoded(given))

    @overload
    def collapse(self, messages: str) -> str: ...
    @overload
    def collapse(self, messages: Sequence[Any]) -> list[Any]: ...
    def collapse(self, messages: Sequence[Any]) -> list[Any] | str:
        """Return the messages with consumed results replaced by their summaries.

        They are Anthropic's `messages`, or OpenAI's `messages` or `input`; a text as `input` has no
        results. The given list and its members do not change: keep appending to it, and pass all
        of it again for the next call.
        """
        if isinstance(messages, str):
            return messages
        parts = list(read_parts(messages))
        positions: dict[str, int] = {}
        last_turn = -1  # position of the last part that the model wrote
        for position, (_, _, part) in enumerate(parts):
            match part:
                case CallPart(id, arguments):
                    last_turn = position
                    self._requested.setdefault(id, (self._tick(), arguments))
                case ResultPart(id):
                    positions.setdefault(id, position)
                    self._process(id)
                case TextPart(from_model=True):
                    last_turn = position
        shown = {id: at for id, at in positions.items() if at < last_turn}  # T-06
        self._choose(shown, positions, parts)
        texts = {
            parts[position][0]: collapsed_text(tracked)
            for id, position in shown.items()
            if id in self._collapsed and (tracked := self._results.find_response(id))
        }
        return replace_results(messages, texts)

    def expand(self, handle: str) -> dict[str, Any]:
        """Return the result of the tool `expand`: the original, without its server's marks.

        It is marked as transient itself; pass it to `add_result` with its content unchanged, by
        which that recognizes it. An unknown handle gives a failed result.
        """
        original = self.original(handle)
        if original is None:
            return failure("There is nothing behind this handle.")
        original.pop("_meta", None)
        self._expanded.append(_content_of(original))
        return transient(original)

    def original(self, handle: str) -> dict[str, Any] | None:
        """Return a new copy of the complete result behind a handle; None if unknown (T-16)."""
        tracked = self._results.find_handle(handle)
        return None if tracked is None else tracked.call.original()

    def badges(self, call_id: str) -> tuple[Badge, ...]:
        """Return the badges that a UI may show beside a result, as of the latest `collapse`."""
        found: list[Badge] = []
        if self._results.find_response(call_id) is not None:
            found.append("collapsed" if call_id in self._collapsed else "transient")
        if self._results.has_consumed(call_id):
            found.append("consumed")
        return tuple(found)

    def settle(self, id: str) -> bool:
        """Let a pending result, by handle or call id, collapse as if it had been consumed.

        For what no consumer will use, such as expanded content once the model has answered. Return
        whether there was such a result.
        """
        return self._results.settle(id)

    def find(self, id: str) -> TransientResult | None:
        """Return the transient result with this handle or call id."""
        return self._results.find(id)

    def _has_expanded(self, result: Result) -> bool:
        # Each once: a server's own tool `expand` may return the same content later.
        content = _content_of(result)
        if content not in self._expanded:
            return False
        self._expanded.remove(content)
        return True

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _process(self, id: str) -> None:
        call = self._added.pop(id, None)
        if call is None:
            return
        unknown = [id]  # arguments equal to no other call's
        # Without its request in the messages, a call precedes its own result only.
        call.index, call.arguments = self._requested.get(id, (self._clock, unknown))
        if _is_too_deep(call.arguments):
            call.arguments = unknown
        call.answered_at = self._tick()
        self._read.add(id)
        self._results.add(call)

    def _choose(
        self,
        shown: Mapping[str, int],
        positions: Mapping[str, int],
        parts: Sequence[tuple[Place, Any, object]],
    ) -> None:
        """Decide which settled results collapse from now on; a decision is never reversed."""
        settled = [
            (id, tracked)
            for id in shown
            if id not in self._collapsed
            and (tracked := self._results.find_response(id)) is not None
            and tracked.state != "pending"
        ]
        if self._cache is None or not settled:
            self._collapsed.update(id for id, _ in settled)
            return
        sizes = [part_tokens(part, self._count) for _, part, _ in parts]
        for id in self._collapsed & positions.keys():
            sizes[positions[id]] = self._summary_tokens(id)
        after = [0, *accumulate(reversed(sizes))][::-1]  # after[i]: tokens from part i on
        planner: CollapsePlanner[_PlacedResult] = CollapsePlanner(self._cache)
        for id, position in positions.items():
            tracked = self._results.find_response(id)
            if tracked and tracked.state == "pending" and self._results.is_paired(tracked):
                planner.expect(_PlacedResult(tracked, position, sizes[position]))
        offered = [
            (
                _PlacedResult(tracked, shown[id], sizes[shown[id]]),
                sizes[shown[id]] - self._summary_tokens(id),
            )
            for id, tracked in settled
        ]
        planner.consider(offered, lambda one: after[one.position + 1], self._count)
        self._collapsed.update(id for id, _ in settled if shown[id] in planner.collapsed)

    def _summary_tokens(self, id: str) -> int:
        tracked = self._results.find_response(id)
        assert tracked is not None
        return self._count(collapsed_text(tracked))


_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def _is_too_deep(value: Any) -> bool:
    """Return whether a value nests deeper than 64 levels; does not recurse."""
    around: list[Iterator[Any]] = [iter((value,))]  # of each level, what is still to be looked at
    while around:
        for one in around[-1]:
            if type(one) not in _SCALARS and (members := _members_of(one)) is not None:
                if len(around) > _MAX_LEVELS:
                    return True
                around.append(iter(members))
                break
        else:
            around.pop()
    return False


def _members_of(value: Any) -> Iterable[Any] | None:
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, Mapping):
        return value.values()
    return getattr(value, "__dict__", {}).values() if hasattr(value, "model_dump") else None


def _content_of(result: Result) -> bytes:
    content = [result.get("content"), result.get("structuredContent")]
    return encoded(content, order="sorted")
