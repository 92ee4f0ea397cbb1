"""What a typed line does: speak, or a command that begins with a slash."""

import re
from collections.abc import Awaitable, Callable
from typing import Final

from anyio.abc import TaskGroup

from mcpp import Envelope, Kind, McppError, Message, Pod, kinds
from mcpp_agents.chat.transcript import Transcript
from mcpp_agents.cli.display import describe, is_failure, one_line
from mcpp_agents.cli.shorthand import read_filter
from mcpp_agents.toolbox import Toolbox

HELP: Final = """\
Type to speak; @NAME addresses somebody.
/who and /tools [NAME] tell who is here and what they offer; /quit leaves.
/open N, /approve N and /reject N [WHY] are for what is numbered [N].
/context N speaks inside a context, /context - outside of all.
/filter WHAT shows only that: main, from:NAME, kind:GLOB, context:[N]+ and so on; /filter shows all.
Tab goes to the list, to what is to be decided, and back: ↑ ↓ PgUp PgDn Home End move, Enter opens \
and folds, a approves, r rejects and lets you say why."""
_numbered = re.compile(r"\[([0-9]+)\]")
_MAX_DIGITS: Final = 9
Tell = Callable[[str], None]


class Actions:
    """A person's hands in the pod. Owns the context that is spoken in."""

    def __init__(self, pod: Pod, transcript: Transcript, tasks: TaskGroup, tell: Tell) -> None:
        self.context: str | None = None
        self._pod = pod
        self._transcript = transcript
        self._tasks = tasks
        self._toolbox = Toolbox(pod)
        self._tell = tell
        self._deciding: set[str] = set()
        self._approved: set[str] = set()  # proposals, then the requests that fulfil them

    def hear(self, message: Message) -> None:
        """Hear the next message. What was approved and failed may stand where nobody looks."""
        self._toolbox.hear(message)
        if message.correlation_id not in self._approved:
            return
        family = Kind.parse(message.kind).family
        if family == kinds.REQUEST and message.sender == self._pod.me:
            self._approved.add(message.id)
            self._approved.discard(message.correlation_id)
        elif family == kinds.RESPONSE:
            self._approved.discard(message.correlation_id)
            if is_failure(message.envelope):
                self._tell(one_line(f"{message.sender}, {describe(message.envelope)}"))

    async def do(self, line: str) -> bool:
        """Do what a line says; False when it says to leave."""
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
        }
        try:
            if not word.startswith("/"):
                await self._say(line.strip())
            elif word in commands:
                await commands[word](rest.strip())
            else:
                self._tell(f"There is no {one_line(word, 40)}: /help tells what there is.")
        except McppError as error:
            self._tell(one_line(str(error)))
        return True

    def approve(self, proposal: str) -> None:
        """Approve a proposal, unless there is more of it to be read."""
        known = self._open_proposal(proposal)
        if known is not None and self._transcript.is_cut(known):
            self._transcript.toggle(proposal)
            self._tell("There is more to it: read it whole, then approve again.")
        elif known is not None:
            self._approved.add(proposal)
            self._decide(known, lambda: self._pod.approve(known))

    def reject(self, proposal: str, why: str) -> None:
        """Reject a proposal, for a reason if one is given."""
        known = self._open_proposal(proposal)
        if known is not None:
            reason = "rejected by a person"
            self._decide(known, lambda: self._pod.reject(known, reason, why or None))

    async def _say(self, text: str) -> None:
        if not text:
            return
        here = self._pod.participants
        named = re.findall(r"(?<!\w)@([\w.:@-]+)", text)
        # A sentence may end with a name, and a name with a dot.
        meant = [name if name in here else name.rstrip(".:-") for name in named]
        to = [name for name in dict.fromkeys(meant) if name in here]
        await self._pod.send("chat", {"text": text}, to=to or None, context=self.context)

    async def _help(self, rest: str) -> None:
        self._transcript.tell(HELP)

    async def _who(self, rest: str) -> None:
        self._tell("Here are " + ", ".join(sorted(self._pod.participants)) + ".")

    async def _tools(self, who: str) -> None:
        offers = (await self._toolbox.offers()).values()
        names = dict.fromkeys(one.participant for one in offers)
        if who:
            lines = [
                f"{one_line(one.tool, 80)} — "
                f"{one_line(str(one.definition.get('description', '')), 200)}"
                for one in offers
                if one.participant == who
            ]
        else:
            lines = [
                f"{name}: "
                + ", ".join(one_line(one.tool, 80) for one in offers if one.participant == name)
                for name in names
            ]
        nobody = f"{who} offers no tools." if who else "Nobody here offers tools."
        self._transcript.tell("\n".join(lines) or one_line(nobody))

    async def _context(self, rest: str) -> None:
        self.context = None if rest in ("", "-") else self._id(rest)
        where = "in the main context" if self.context is None else f"in context [{rest}]"
        self._tell(f"You now speak {where}.")

    async def _filter(self, rest: str) -> None:
        wanted = _numbered.sub(lambda found: self._id(found[1]), rest)
        self._transcript.filter = read_filter(wanted) if wanted else None
        self._tell(f"Shown is {one_line(rest) or 'everything'}.")

    async def _open(self, rest: str) -> None:
        self._transcript.toggle(self._id(rest))

    async def _approve(self, rest: str) -> None:
        self.approve(self._id(rest))

    async def _reject(self, rest: str) -> None:
        number, _, why = rest.partition(" ")
        self.reject(self._id(number), why.strip())

    def _id(self, number: str) -> str:
        is_number = number.isdecimal() and len(number) <= _MAX_DIGITS
        id = self._transcript.named(int(number)) if is_number else None
        if id is None:
            raise McppError(f"nothing here has the number {number!r}")
        return id

    def _open_proposal(self, id: str) -> Envelope | None:
        known = self._transcript.proposals.get(id)
        if known is not None and not known.end:
            return known.envelope
        self._tell("That is no proposal." if known is None else f"It is {known.state} already.")
        return None

    def _decide(self, proposal: Envelope, deciding: Callable[[], Awaitable[object]]) -> None:
        if proposal.id in self._deciding:
            return

        async def decide() -> None:
            try:
                await deciding()
            except McppError as error:
                self._tell(one_line(str(error)))
            finally:
                self._deciding.discard(proposal.id)

        self._deciding.add(proposal.id)
        self._tasks.start_soon(decide)
