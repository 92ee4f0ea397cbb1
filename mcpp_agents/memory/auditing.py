"""The caller of a store, and the audit of its calls.

Every public operation of the store opens one `CallAudit` and calls only private methods, so each
operation is audited once, by whichever path it came: library, MCP server or bus (M-14).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from mcpp_agents.memory.access import OWNER, Principal
from mcpp_agents.memory.errors import MemoryStoreError
from mcpp_agents.memory.storage.engine import AuditEntry, Engine


class LogPlace(NamedTuple):
    """Where in its pod's log something was said: an erasure covers some places (H-14)."""

    last_erasure: float | None = None
    """The time of the last erasure that precedes it; None if there is none."""
    lineage: tuple[str, ...] = ()
    """Its context and those above it, the root first."""

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of an item that was made from it."""
        stated = {"last_erasure": self.last_erasure, "lineage": list(self.lineage) or None}
        return {name: value for name, value in stated.items() if value is not None}


NOWHERE: Final = LogPlace()


@dataclass(frozen=True)
class StoreCaller:
    """The identity for which a store acts.

    The principal determines what may be read and written. On the bus it is the pod, and `author`
    is the participant that sent the request: it is recorded with each item, and has a quota.
    `place` is the place in the pod's log of what is stored.
    """

    principal: Principal = OWNER
    author: str | None = None
    origin: str = "direct"
    place: LogPlace = NOWHERE


class CallAudit:
    """Writes the audit row of one call. It contains ids and lengths, never goals or content."""

    def __init__(
        self, engine: Engine, caller: StoreCaller, clock: Callable[[], float], tool: str
    ) -> None:
        self._engine = engine
        self._caller = caller
        self._clock = clock
        self._tool = tool
        self._details: dict[str, Any] = {}

    def add_details(self, **details: Any) -> None:
        """Add details to the row, whether the call succeeds or is refused."""
        self._details.update(details)

    def succeeded(self, **details: Any) -> None:
        """Write the row of a call that succeeded; inside a write, it commits with the write."""
        self._write(details)

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Write the row of a call that the block refuses."""
        try:
            yield
        except MemoryStoreError as error:
            self._write({"refused": type(error).__name__})
            raise

    def _write(self, details: dict[str, Any]) -> None:
        caller = self._caller
        self._engine.audit(
            AuditEntry(
                at=self._clock(),
                principal=caller.principal.account,
                tool=self._tool,
                details={**self._details, **details},
                author=caller.author,
            )
        )
