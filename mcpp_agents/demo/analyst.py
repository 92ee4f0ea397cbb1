"""The demo's analyst: goes through the time sheet, month after month, and says what it finds."""

import itertools
from contextlib import suppress
from typing import Any, Final

import anyio
import msgspec

from mcpp import ContextScope, Envelope, Kind, McppError, Message, Participant, Pod, kinds
from mcpp.client.tasks import background, until_signal
from mcpp.errors import CallError, Refused
from mcpp.protocol import rpc
from mcpp_agents.demo.reviewer import Beat, a_moment
from mcpp_agents.memory import ContextPack

_LONG_MINUTES: Final = 600
# A person may be at lunch; by then the next month's question is more to the point.
_DECISION_SECONDS: Final = 900.0
# More at once would be a heap that nobody wants to begin with.
_MAX_WAITING: Final = 3
_CALL_SECONDS: Final = 10.0
# What the memory takes of one participant in an hour (M-35) lasts for about as many months: with
# this pause, and what one takes to read and review, a demo of hours goes on remembering.
REST_SECONDS: Final = 25.0
# More than is said while a proposal waits.
_HISTORY: Final = 5000


def agent(beat: Beat = a_moment, rest_seconds: float = REST_SECONDS) -> Participant:
    """Return the analyst; `beat` is its pace, `rest_seconds` its pause between months."""
    analyst = Participant("analyst", last=_HISTORY)
    done = ["I have only just begun."]

    @analyst.on("chat")
    async def answer(message: Message) -> None:
        if message.to and message.pod.me in message.to:
            await message.reply(f"I read the time sheet, a month at a time. {done[-1]}")

    @analyst.task
    async def work(pod: Pod) -> None:
        await everybody(pod, "records", "reviewer")
        waiting: set[int] = set()
        async with background() as tasks:
            for month in itertools.count(1):
                try:
                    found = await go_through(pod, month, beat)
                    done[:] = [found["text"]]
                except (CallError, Refused) as error:
                    found = {"wrong": []}
                    done[:] = [f"Month {month} is left out: {error}"]
                await say(pod, done[-1])
                for wrong in found["wrong"]:
                    if len(waiting) < _MAX_WAITING:
                        tasks.start_soon(propose, pod, month, wrong, waiting)
                    else:
                        still = f"{len(waiting)} corrections wait for a person already"
                        await say(pod, f"Activity {wrong['id']} is wrong, too, but {still}.")
                await anyio.sleep(rest_seconds)

    return analyst


async def say(pod: Pod, text: str, correlation_id: str | None = None) -> None:
    """Say something; that it is refused is no reason to stop working."""
    with suppress(Refused):
        await pod.send("chat", {"text": text}, correlation_id=correlation_id)


async def everybody(pod: Pod, *names: str) -> None:
    """Wait until these participants are here."""
    while not set(names) <= set(pod.participants):  # noqa: ASYNC110  (a demo may look and wait)
        await anyio.sleep(0.1)


async def go_through(pod: Pod, month: int, beat: Beat) -> dict[str, Any]:
    """Read a month page by page; each page is transient, and used up when it is noted."""
    goal = f"Check the time sheet of month {month}"
    async with pod.context("workflow", goal=goal) as workflow:
        await recall(pod, workflow, goal)
        await workflow.call("records", "get_workflow_step", order=1, timeout=_CALL_SECONDS)
        page, pages, total = 1, 1, 0
        odd: list[dict[str, Any]] = []
        while page <= pages:
            result = await workflow.call(
                "records", "search_activities", month=month, page=page, timeout=_CALL_SECONDS
            )
            activities, pages = result.value["activities"], result.value["pages"]
            await beat()
            minutes = sum(one["minutes"] for one in activities)
            strange = [one for one in activities if one["minutes"] >= _LONG_MINUTES]
            seen = f"Page {page} of {pages}: {len(activities)} activities, {minutes} minutes"
            doubt = "".join(f"; {one['who']}'s {one['minutes']} look wrong" for one in strange)
            await workflow.send("reflection", {"thought": seen + doubt + "."})
            ids = [one["id"] for one in strange]
            noted = {"month": month, "page": page, "minutes": minutes, "odd": ids}
            await workflow.call("records", "note_page", noted, timeout=_CALL_SECONDS)
            total, odd, page = total + minutes, odd + strange, page + 1
        verdicts = [
            (await workflow.call("reviewer", "review", month=month, timeout=30, **one)).value
            for one in odd
        ]
        wrong = [one for one in verdicts if one["wrong"]]
        # It names its subject: whoever remembers it has nothing else to find it by.
        text = (
            f"The time sheet of month {month} has {total // 60} hours on {pages} pages, "
            f"{len(wrong)} of {len(odd)} doubts confirmed."
        )
        await workflow.conclude(text, confidence=0.9)
        return {"text": text, "wrong": wrong}


async def recall(pod: Pod, workflow: ContextScope, goal: str) -> None:
    """Ask memory, where there is one, what was concluded before."""
    if "memory" not in pod.participants:
        return
    try:
        asked = {"goal": goal, "limit": 3}
        result = await workflow.call("memory", "context", asked, timeout=_CALL_SECONDS)
        pack = msgspec.convert(result.value, ContextPack)
        thought = "Nothing is remembered about this yet."
        if pack.items:
            thought = f"I remember, first of {pack.total_items}: {pack.items[0].name}"
    except (CallError, msgspec.ValidationError) as error:
        thought = f"Without memory, then: {error}"
    await workflow.send("reflection", {"thought": thought})


async def propose(pod: Pod, month: int, verdict: dict[str, Any], waiting: set[int]) -> None:
    """Propose a correction, and leave it to a person."""
    id, minutes = verdict["id"], verdict["minutes"]
    waiting.add(id)
    try:
        proposal = await pod.propose(
            "records", "correct_activity", {"month": month, "id": id, "minutes": minutes}
        )
        text = f"I propose to change activity {id} to {minutes} minutes: approve it, or reject it?"
        await say(pod, text, proposal.id)
        try:
            await proposal.result(_DECISION_SECONDS, until_rejected=True)
            text = f"Activity {id} is corrected. Thank you, {proposal.fulfilled_by}."
        except CallError as error:
            # Whoever edits a proposal asks in their own name, and tells so by a rejection.
            edited = [who for who, opinion in proposal.rejections if opinion.reason == "edited"]
            text = f"Activity {id} stays as it is: {error.problem}."
            if edited:
                text = f"Activity {id} is corrected otherwise. Thank you, {edited[0]}."
            if proposal.fulfilled_by is None:
                await proposal.withdraw(error.problem)
        await say(pod, text, proposal.id)
    except Refused as error:
        await say(pod, f"I may not propose to change activity {id}: {error}")
    finally:
        waiting.discard(id)


async def take_back(pod: Pod) -> None:
    """Withdraw what an earlier life of ours proposed: nobody waits for its outcome any more."""
    left: dict[str, Envelope] = {}
    for _ in range(pod.history):
        heard = (await anext(pod)).envelope
        answered = left.get(heard.correlation_id or "")
        if heard.sender == pod.me and Kind.parse(heard.kind).family == kinds.PROPOSAL:
            left[heard.id] = heard
        elif answered is not None and (
            rpc.fulfils(heard, answered) or (heard.kind, heard.sender) == (kinds.WITHDRAW, pod.me)
        ):
            del left[answered.id]
    for proposal in left.values():
        reason = {"reason": "I was started again"}
        await pod.send(kinds.WITHDRAW, reason, to=proposal.to, correlation_id=proposal.id)


async def take_part(analyst: Participant) -> None:
    """Join as the analyst, once more perhaps."""
    async with analyst.connect() as pod:
        await take_back(pod)
        await analyst.serve(pod)


def main() -> None:
    """Run it as the demo does."""
    try:
        anyio.run(until_signal, lambda: take_part(agent()))
    except McppError as error:
        raise SystemExit(f"analyst: {error}") from error
