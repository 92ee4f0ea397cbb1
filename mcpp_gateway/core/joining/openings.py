"""Openings: how a session begins, with its place in the log and its welcome.

Finding the place and counting what is replayed may take reading the whole log. That is done a piece
at a time, and charged to the participant's joins. The place is looked for at once: the next
envelopes may push out of the log what the session wants to resume after. What is replayed is
counted once everything before the join is committed.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from mcpp import kinds
from mcpp_gateway.core import system_envelopes
from mcpp_gateway.core.contexts.live_context import LiveContext
from mcpp_gateway.core.delivery import Router
from mcpp_gateway.core.joining.members import Members
from mcpp_gateway.core.journal import Journal, UnreadableError
from mcpp_gateway.core.sessions import Member, Opening, Session

_READ_JOINS: Final = 1 / 500  # joins that a unit of `reading_cost` counts for
_READ_AT_ONCE: Final = 512  # about 2 ms; the rest is read in further calls


class Openings:
    """Begins the sessions of a pod. Owns nothing: the work is kept by each session."""

    def __init__(
        self,
        journal: Journal,
        members: Members,
        delivery: Router,
        *,
        new_id: Callable[[], str],
        pod_info: Callable[[float], dict[str, Any]],
    ) -> None:
        self._journal = journal
        self._members = members
        self._delivery = delivery
        self._new_id = new_id
        self._pod_info = pod_info

    def begin(
        self,
        session: Session,
        contexts: Iterable[LiveContext],
        *,
        after: str | None,
        last: int | None,
    ) -> None:
        """Let a session begin at the end of the log, with a welcome that lists these contexts."""
        member = session.member
        session.position = session.opens_at = self._journal.end
        self._members.charge_join(member.settings.id, 1, session.joined)
        welcome = self._welcome(member, contexts, session.joined)
        opening = self._open(session, welcome, after, last)
        if after is None and not last:
            next(opening, None)  # there is nothing to read
            return
        session.opening = opening
        self.advance(session)

    def advance(self, session: Session) -> bool:
        """Do some of the work of a session's opening; return whether more can be done now."""
        cost, waits = 0, False
        for each in session.opening or ():
            waits = each is None
            cost += each or 0
            if waits or cost >= _READ_AT_ONCE:
                break
        else:
            session.opening = None
        # As of the time of the join, which was charged then.
        self._members.charge_join(session.member.settings.id, cost * _READ_JOINS, session.joined)
        return session.opening is not None and not waits

    def _open(
        self, session: Session, welcome: dict[str, Any], after: str | None, last: int | None
    ) -> Opening:
        """Find where a session begins, then queue its welcome."""
        try:
            found = yield from self._delivery.place(session, after, last)
        except UnreadableError:
            session.position = session.opens_at
            found = False, 0
        welcome["resumed"], welcome["replayed"] = found
        text = system_envelopes.system(self._new_id(), kinds.WELCOME, welcome, session.joined)
        assert session.waiting is not None
        session.waiting.appendleft((session.position, text, None))
        session.waiting_bytes += len(text)

    def _welcome(
        self, member: Member, contexts: Iterable[LiveContext], now: float
    ) -> dict[str, Any]:
        """Return a welcome's payload as of now, but for what is replayed."""
        journal = self._journal
        limits = self._members.limits(member.settings.id)
        rest: dict[str, Any] = {"pod": self._pod_info(now), "limits": limits}
        # A client that is cut off before it received anything can resume from here.
        with suppress(UnreadableError):
            if latest := journal.read(journal.end - 1, 1):
                rest["position"] = latest[0].id
        contexts = (node for node in contexts if member.rights.allow_context(node.lineage))
        return system_envelopes.welcome(member, self._members.present.values(), contexts, rest)
