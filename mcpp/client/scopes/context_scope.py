"""A sub-context as an `async with` block.

A context has no start or end message on the wire: it begins with the first envelope that names it,
and its creator's `conclusion` ends it. The block keeps its id, type and parent together; its
`send`, `call`, `propose` and so on send in the context. An exception in the block concludes the
context as failed, a cancellation as cancelled (C-19).
"""

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from mcpp import kinds
from mcpp.client import factory
from mcpp.client.scopes.templates import ContextTemplate
from mcpp.client.sender import Sender
from mcpp.errors import McppError
from mcpp.payloads import Conclusion, ContextFailure, Reflection
from mcpp.protocol.envelope import Context, Envelope

if TYPE_CHECKING:
    from mcpp.client.pod import Pod

_MAX_MESSAGE_CHARS: Final = 1000

logger = logging.getLogger("mcpp.client")


class ContextScope(Sender):
    """A context to send in; `Pod.context` opens one. Owns whether its metadata has been sent."""

    def __init__(
        self,
        pod: "Pod",
        type: str | ContextTemplate | None,
        *,
        title: str | None = None,
        id: str | None = None,
        parent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(pod._connection)
        self.pod = pod
        self.id = factory.new_id() if id is None else id
        self.template = type if isinstance(type, ContextTemplate) else None
        self.type = type.name if isinstance(type, ContextTemplate) else type
        self.title = title
        self.parent = parent
        self._metadata = self._described_by(metadata or {})
        self._described = False
        self._concluded = False

    def _described_by(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        known = dict(metadata) if self.template is None else self.template.check(metadata)
        if self.title is not None:
            known["title"] = self.title
        if self.template is not None and self.template.steps:
            known["steps"] = self.template.steps
        return {**known, "started_at": factory.timestamp(factory.now())}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Conclude the context as failed or cancelled if the block was left by an exception.

        Otherwise do nothing: an unconcluded context expires at the gateway. Of another
        participant's context only that participant decides how it ended (C-17).
        """
        if error is None or self._concluded or not self._is_ours:
            return
        failure = _failure_in(error)
        ending = Conclusion(
            outcome="cancelled" if failure is None else "failed",
            error=None if failure is None else _described(failure),
        )
        envelope = self._envelope(kinds.CONCLUSION, ending, None, None, self._ended({}))
        try:
            # Without waiting for the echo: the task may be cancelled.
            await self._connection.send_shielded(envelope)
        except McppError as problem:
            logger.warning("%s: cannot say how context %s ended: %s", self.pod.me, self.id, problem)

    @property
    def _is_ours(self) -> bool:
        known = self._session.contexts.get(self.id)
        return known is None or known.creator in (None, self._session.name)

    def child(
        self,
        type: str | ContextTemplate | None = None,
        *,
        title: str | None = None,
        id: str | None = None,
        **metadata: Any,
    ) -> Self:
        """Open a context below this one; the arguments are those of `Pod.context`."""
        return self.__class__(self.pod, type, title=title, id=id, parent=self.id, metadata=metadata)

    async def step(self, name: str, text: str | None = None) -> Envelope:
        """Begin a step of the context's template: `await review.step("tests")`.

        Args:
            name: one of the template's steps.
            text: more about it; defaults to the name.

        Raises ValueError for a step that the template does not have.
        """
        steps = () if self.template is None else self.template.steps
        if name not in steps:
            known = ", ".join(steps) or "none: open the context with a ContextTemplate"
            raise ValueError(f"{name!r} is not a step of this context; its steps are {known}")
        return await self.send(kinds.REFLECTION, Reflection(thought=text or name, step=name))

    async def conclude(self, conclusion: Any, **metadata: Any) -> Envelope:
        """Conclude the context.

        Args:
            conclusion: the payload; a string becomes `{"text": …}`.
            metadata: such as confidence=0.9.
        """
        context = self._ended(metadata)
        echo = await self.send(kinds.CONCLUSION, conclusion, context=context)
        self._described = self._concluded = True
        return echo

    def _ended(self, metadata: Mapping[str, Any]) -> Context:
        # The title again: who finds only the conclusion should see what has ended.
        title = {} if self.title is None else {"title": self.title}
        ended = {**title, **metadata, "ended_at": factory.timestamp(factory.now())}
        return self._context(ended if self._described else {**self._metadata, **ended})

    @property
    def _own_pod(self) -> "Pod":
        return self.pod

    def _describe(self) -> Context:
        """Return the context for the next envelope; only the first one carries its metadata."""
        return self._context(None if self._described else self._metadata)

    def _mark_described(self) -> None:
        """Record that an envelope with the metadata is in the log."""
        self._described = True

    def _context(self, metadata: Mapping[str, Any] | None) -> Context:
        return factory.new_context(self.type, id=self.id, parent=self.parent, metadata=metadata)


def _failure_in(error: BaseException) -> Exception | None:
    """Return the exception that made a block fail; None if it was only cancelled."""
    if isinstance(error, BaseExceptionGroup):
        failures = list(filter(None, map(_failure_in, error.exceptions)))
        if len(failures) == 1 or not isinstance(error, Exception):
            return failures[0] if failures else None
    return error if isinstance(error, Exception) else None


def _described(error: Exception) -> ContextFailure:
    text = str(error)
    if len(text) > _MAX_MESSAGE_CHARS:
        text = text[: _MAX_MESSAGE_CHARS - 1] + "…"
    return ContextFailure(type=type(error).__name__, message=text)
