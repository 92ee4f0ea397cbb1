"""A sub-context as an `async with` block.

A context has no start or end on the wire: it begins with the first envelope that names it, and its
creator's `conclusion` concludes it. The block only keeps its id, type and parent together, and is
a voice like the pod's: `send`, `call`, `propose` and so on are said in it.
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
    """A context that we send into. Owns whether its metadata has been told yet."""

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
        self._told = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave without a word: what was not concluded goes idle, and the gateway forgets it."""

    def child(self, type: str | None = None, *, id: str | None = None, **metadata: Any) -> Self:
        """Open a context below this one."""
        return self.__class__(self.pod, type, id=id, parent=self.id, metadata=metadata)

    async def conclude(self, conclusion: Any, **metadata: Any) -> Envelope:
        """Conclude the context; a text becomes `{"text": …}`, `metadata` such as confidence=0.9."""
        ended = {**metadata, "ended_at": factory.timestamp(factory.now())}
        told = ended if self._told else {**self._metadata, **ended}
        payload = {"text": conclusion} if isinstance(conclusion, str) else conclusion
        return await self.send(kinds.CONCLUSION, payload, context=self._described(told))

    def describe(self) -> Context:
        """Return the context as the next envelope should carry it."""
        return self._described(None if self._told else self._metadata)

    def told(self) -> None:
        """Take note that an envelope with the metadata is in the log."""
        self._told = True

    def _described(self, metadata: Mapping[str, Any] | None) -> Context:
        return factory.new_context(self.type, id=self.id, parent=self.parent, metadata=metadata)
