"""What a typed line does: send a message, or run a command that begins with a slash."""

import re
from collections.abc import Awaitable, Callable, Iterable
from difflib import get_close_matches
from typing import Final

from anyio.abc import TaskGroup

from mcpp import Envelope, Kind, McppError, Message, Pod, kinds
from mcpp.cli.shorthand import read_filter
from mcpp_agents.chat.questions import OpenQuestions
from mcpp_agents.chat.transcript import Transcript
from mcpp_agents.cli.display import describe, is_failure, one_line
from mcpp_agents.toolbox import Toolbox

HELP: Final = """\
Type a message and press Enter; @NAME addresses a participant, and Tab completes the name.
/who lists the participants, /tools [NAME] lists their tools, /quit leaves.
/answer N NAME=VALUE … and /decline N answer a question that a participant asks you.
/open N, /approve N and /reject N [REASON] act on the item numbered [N].
/context N sends your messages inside a context, /context - in the main context.
/filter FILTER shows only matches: main, from:NAME, kind:GLOB, context:[N]+ …; /filter shows all.
Tab switches between the input line and the list, where it selects a proposal to decide: \
↑ ↓ PgUp PgDn Home End move, Enter opens and folds, a approves, r rejects and lets you add a \
reason."""
_numbered = re.compile(r"\[([0-9]+)\]")
_MAX_DIGITS: Final = 9
Notify = Callable[[str], None]


def _absence(absent: list[str], present: Iterable[str]) -> str:
    """Return a warning that participants who were addressed are not in the pod."""
    near = get_close_matches(absent[0], list(present), 1)
    hint = f" Did you mean @{near[0]}?" if near else " /who lists the participants."
    names = ", ".join(f"@{name}" for name in absent)
    verb = "is" if len(absent) == 1 else "are"
    return one_line(f"{names} {verb} not in the pod, and may not see this.{hint}")


class Actions:
    """Carries out what a person types. Owns the context in which messages are sent."""

    def __init__(self, pod: Pod, transcript: Transcript, tasks: TaskGroup, notify: Notify) -> None:
        self.context: str | None = None
        self._pod = pod
        self._transcript = transcript
        self._tasks = tasks
        self._toolbox = Toolbox(pod)
        self._notify = notify
        self._questions = OpenQuestions(pod)
        self._deciding: set[str] = set()
        self._confirmed: set[str] = set()  # to be approved although the proposer is gone
        self._approved: set[str] = set()  # ids of proposals, then of the requests fulfilling them

    def observe(self, message: Message) -> None:
        """Process a message; report the failure of a call that this person approved."""
        self._toolbox.observe(message)
        question = self._questions.observe(message)
        if question is not None:
            self._transcript.notify(question.describe(self._transcript.number(message.id)))
        if message.correlation_id not in self._approved:
            return
        family = Kind.parse(message.kind).family
        if family == kinds.REQUEST and message.sender == self._pod.me:
            self._approved.add(message.id)
            self._approved.discard(message.correlation_id)
        elif family == kinds.RESPONSE:
            self._approved.discard(message.correlation_id)
            if is_failure(message.envelope):
                self._notify(one_line(f"{message.sender}, {describe(message.envelope)}"))

    async def do(self, line: str) -> bool:
        """Carry out a typed line; return False if it says to leave."""
        word, _, rest = line.strip().partition(" ")
        if word in ("/quit", "/exit"):
            return False
        commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "/help": self._help,
            "/who": self._who,
            "/tools": self._tools,
            "/context": self._context,
            "/filter": self._filter,
            "/open": self._open,
            "/approve": self._approve,
            "/reject": self._reject,
            "/answer": self._answer,
            "/decline": self._decline,
        }
        try:
            if not word.startswith("/"):
                await self._send(line.strip())
            elif word in commands:
                await commands[word](rest.strip())
            else:
                self._notify(f"Unknown command {one_line(word, 40)}; /help lists the commands.")
        except McppError as error:
            self._notify(one_line(str(error)))
        return True

    def approve(self, proposal: str) -> None:
        """Approve a proposal; if it is shown truncated, open it instead."""
        known = self._open_proposal(proposal)
        if known is not None and self._transcript.is_truncated(known):
            self._transcript.toggle(proposal)
            self._notify("The proposal was truncated. Read all of it, then approve again.")
        elif known is not None and self._is_abandoned(known):
            self._confirmed.add(proposal)
            self._notify(
                f"{known.sender} is not in the pod, so it does not wait for the result. "
                "Approve again to make the call all the same."
            )
        elif known is not None:
            self._approved.add(proposal)
            self._decide(known, lambda: self._pod.approve(known))

    def _is_abandoned(self, proposal: Envelope) -> bool:
        """Return whether the proposer is gone, and this person was not asked yet what to do."""
        is_present = proposal.sender in self._pod.participants
        return not is_present and proposal.id not in self._confirmed

    def reject(self, proposal: str, reason: str) -> None:
        """Reject a proposal, optionally with a reason."""
        known = self._open_proposal(proposal)
        if known is not None:
            code = "rejected by a person"
            self._decide(known, lambda: self._pod.reject(known, code, reason or None))

    async def _send(self, text: str) -> None:
        if not text:
            return
        present = self._pod.participants
        mentioned = re.findall(r"(?<!\w)@([\w.:@-]+)", text)
        # Punctuation after a name is not part of it, but a name may end with a dot too.
        names = [name if name in present else name.rstrip(".:-") for name in mentioned]
        to = [name for name in dict.fromkeys(names) if name in present]
        absent = [name for name in dict.fromkeys(names) if name and name not in present]
        await self._pod.send("chat", {"text": text}, to=to or None, context=self.context)
        if absent:
            self._notify(_absence(absent, present))

    async def _help(self, rest: str) -> None:
        self._transcript.notify(HELP)

    async def _who(self, rest: str) -> None:
        self._notify("Participants: " + ", ".join(sorted(self._pod.participants)) + ".")

    async def _tools(self, participant: str) -> None:
        tools = (await self._toolbox.list_tools()).values()
        if participant:
            lines = [
                f"{one_line(tool.tool, 80)} — "
                f"{one_line(str(tool.definition.get('description', '')), 200)}"
                for tool in tools
                if tool.participant == participant
            ]
        else:
            lines = [
                f"{name}: "
                + ", ".join(one_line(tool.tool, 80) for tool in tools if tool.participant == name)
                for name in dict.fromkeys(tool.participant for tool in tools)
            ]
        empty = f"{participant} offers no tools." if participant else "No participant offers tools."
        self._transcript.notify("\n".join(lines) or one_line(empty))

    async def _context(self, rest: str) -> None:
        self.context = None if rest in ("", "-") else self._id(rest)
        where = "in the main context" if self.context is None else f"in context [{rest}]"
        self._notify(f"Your messages are now sent {where}.")

    async def _filter(self, rest: str) -> None:
        expression = _numbered.sub(lambda found: self._id(found[1]), rest)
        self._transcript.filter = read_filter(expression) if expression else None
        self._notify(f"Showing {one_line(rest) or 'everything'}.")

    async def _open(self, rest: str) -> None:
        self._transcript.toggle(self._id(rest))

    async def _approve(self, rest: str) -> None:
        self.approve(self._id(rest))

    async def _reject(self, rest: str) -> None:
        number, _, reason = rest.partition(" ")
        self.reject(self._id(number), reason.strip())

    async def _answer(self, rest: str) -> None:
        number, _, text = rest.partition(" ")
        await self._questions.accept(self._id(number), text)

    async def _decline(self, rest: str) -> None:
        await self._questions.decline(self._id(rest))

    def _id(self, number: str) -> str:
        is_number = number.isdecimal() and len(number) <= _MAX_DIGITS
        id = self._transcript.find(int(number)) if is_number else None
        if id is None:
            raise McppError(f"there is no item number {number!r}")
        return id

    def _open_proposal(self, id: str) -> Envelope | None:
        known = self._transcript.proposals.get(id)
        if known is not None and not known.end:
            return known.envelope
        self._notify(
            "That is not a proposal." if known is None else f"It is already {known.state}."
        )
        return None

    def _decide(self, proposal: Envelope, action: Callable[[], Awaitable[object]]) -> None:
        if proposal.id in self._deciding:
            return

        async def decide() -> None:
            try:
                await action()
            except McppError as error:
                self._notify(one_line(str(error)))
            finally:
                self._deciding.discard(proposal.id)

        self._deciding.add(proposal.id)
        self._tasks.start_soon(decide)
