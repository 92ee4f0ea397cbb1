"""A sub-context as an `async with` block.

A context has no start or end message on the wire: it begins with the first envelope that names it,
and its creator's `conclusion` concludes it. The block keeps its id, type and parent together; its
`send`, `call`, `propose` and so on send in the context.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mcpp import kinds
from mcpp.client import factory
from mcpp.client.sender import Sender
from mcpp.protocol.envelope import Context, Envelope

if TYPE_CHECKING:
    from mcpp.client.pod import Pod


class ContextScope(Sender):
    """A context to send in; `Pod.context` opens one. Owns whether its metadata has been sent."""

    def __init__(
        self,
        pod: "Pod",
        type: str | None,
        *,
        id: str | None = None,
        parent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(pod._connection)
        self.pod = pod
        self.id = factory.new_id() if id is None else id
        self.type = type
        self.parent = parent
        self._metadata = {**(metadata or {}), "started_at": factory.timestamp(factory.now())}
        self._described = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Do nothing on exit; an unconcluded context expires at the gateway."""

    def child(self, type: str | None = None, *, id: str | None = None, **metadata: Any) -> Self:
        """Open a context below this one; `metadata` describes it."""
        return self.__class__(self.pod, type, id=id, parent=self.id, metadata=metadata)

    async def conclude(self, conclusion: Any, **metadata: Any) -> Envelope:
        """Conclude the context.

        Args:
            conclusion: the payload; a string becomes `{"text": …}`.
            metadata: such as confidence=0.9.
        """
        ended = {**metadata, "ended_at": factory.timestamp(factory.now())}
        metadata_to_send = ended if self._described else {**self._metadata, **ended}
        return await self.send(
            kinds.CONCLUSION, conclusion, context=self._context(metadata_to_send)
        )

    def _describe(self) -> Context:
        """Return the context for the next envelope; only the first one carries its metadata."""
        return self._context(None if self._described else self._metadata)

    def _mark_described(self) -> None:
        """Record that an envelope with the metadata is in the log."""
        self._described = True

    def _context(self, metadata: Mapping[str, Any] | None) -> Context:
        return factory.new_context(self.type, id=self.id, parent=self.parent, metadata=metadata)
