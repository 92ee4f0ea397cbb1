"""The demo's analyst: checks the time sheet month by month and reports what it finds."""

import itertools
from contextlib import suppress
from typing import Any, Final

import anyio
import msgspec

from mcpp import CallError, ContextScope, Kind, McppError, Message, Participant, Pod, Refused, kinds
from mcpp.client.tasks import background, until_signal
from mcpp.protocol import rpc
from mcpp_agents.demo.reviewer import Pause, reading_pause
from mcpp_agents.memory import ContextPack

_LONG_MINUTES: Final = 600
_DECISION_SECONDS: Final = 900.0  # then the proposal is withdrawn
_MAX_OPEN_PROPOSALS: Final = 3  # more would be tedious to review
_CALL_SECONDS: Final = 10.0
# The analyst stores one memory a month. With this rest, and the time that a month takes, it stays
# below the hourly limit of memories per participant (M-35) however long the demo runs.
REST_SECONDS: Final = 25.0
# More messages than the pod exchanges while a proposal is open.
_HISTORY: Final = 5000


def agent(pause: Pause = reading_pause, rest_seconds: float = REST_SECONDS) -> Participant:
    """Return the analyst.

    `pause` is awaited between its steps; `rest_seconds` is the time between two months.
    """
    analyst = Participant("analyst", last=_HISTORY)
    done = ["I have only just begun."]
    analyst.on_history(withdraw_open_proposals)

    @analyst.on("chat")
    async def answer(message: Message) -> None:
        if message.to and message.pod.me in message.to:
            await message.reply(f"I read the time sheet, a month at a time. {done[-1]}")

    @analyst.task
    async def work(pod: Pod) -> None:
        await wait_for_participants(pod, "records", "reviewer")
        proposed: set[int] = set()
        async with background() as tasks:
            for month in itertools.count(1):
                try:
                    found = await check_month(pod, month, pause)
                    done[:] = [found["text"]]
                except (CallError, Refused) as error:
                    found = {"wrong": []}
                    done[:] = [f"I skipped month {month}: {error}"]
                await say(pod, done[-1])
                for wrong in found["wrong"]:
                    if len(proposed) < _MAX_OPEN_PROPOSALS:
                        tasks.start_soon(propose, pod, month, wrong, proposed)
                    else:
                        reason = f"{len(proposed)} corrections are already waiting for a person"
                        await say(pod, f"Activity {wrong['id']} is wrong too, but {reason}.")
                await anyio.sleep(rest_seconds)

    return analyst


async def say(pod: Pod, text: str, correlation_id: str | None = None) -> None:
    """Send a chat message; ignore a refusal, since the work can go on without it."""
    with suppress(Refused):
        await pod.send("chat", {"text": text}, correlation_id=correlation_id)


async def wait_for_participants(pod: Pod, *names: str) -> None:
    """Wait until these participants have joined."""
    while not set(names) <= set(pod.participants):  # noqa: ASYNC110  (polling is enough for a demo)
        await anyio.sleep(0.1)


async def check_month(pod: Pod, month: int, pause: Pause) -> dict[str, Any]:
    """Read a month page by page and have suspicious entries reviewed.

    Each page is a transient result that `note_page` consumes.
    """
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
            await pause()
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
        # Name the subject in the text: memory finds the conclusion by its words alone.
        text = (
            f"The time sheet of month {month} has {total // 60} hours on {pages} pages, "
            f"{len(wrong)} of {len(odd)} suspicious entries confirmed."
        )
        await workflow.conclude(text, confidence=0.9)
        return {"text": text, "wrong": wrong}


async def recall(pod: Pod, workflow: ContextScope, goal: str) -> None:
    """Ask the memory agent, if there is one, for earlier conclusions."""
    if "memory" not in pod.participants:
        return
    try:
        asked = {"goal": goal, "limit": 3}
        result = await workflow.call("memory", "context", asked, timeout=_CALL_SECONDS)
        pack = msgspec.convert(result.value, ContextPack)
        thought = "Memory has nothing about this yet."
        if pack.items:
            thought = f"I remember, first of {pack.total_items}: {pack.items[0].name}"
    except (CallError, msgspec.ValidationError) as error:
        thought = f"I continue without memory: {error}"
    await workflow.send("reflection", {"thought": thought})


async def propose(pod: Pod, month: int, verdict: dict[str, Any], proposed: set[int]) -> None:
    """Propose a correction and wait for a person's decision."""
    id, minutes = verdict["id"], verdict["minutes"]
    proposed.add(id)
    try:
        proposal = await pod.propose(
            "records", "correct_activity", {"month": month, "id": id, "minutes": minutes}
        )
        text = f"I propose to change activity {id} to {minutes} minutes. Do you approve?"
        await say(pod, text, proposal.id)
        try:
            await proposal.result(_DECISION_SECONDS, until_rejected=True)
            text = f"Activity {id} is corrected. Thank you, {proposal.fulfilled_by}."
        except CallError as error:
            # A person who edits a proposal makes the call themselves and rejects ours as "edited".
            edited = [who for who, opinion in proposal.rejections if opinion.reason == "edited"]
            text = f"Activity {id} stays as it is: {error.problem}."
            if edited:
                text = f"Activity {id} is corrected differently. Thank you, {edited[0]}."
            if proposal.fulfilled_by is None:
                await proposal.withdraw(error.problem)
        await say(pod, text, proposal.id)
    except Refused as error:
        await say(pod, f"I may not propose to change activity {id}: {error}")
    finally:
        proposed.discard(id)


async def withdraw_open_proposals(history: list[Message]) -> None:
    """Withdraw proposals left open by an earlier run of the analyst; no task awaits them now."""
    open: dict[str, Message] = {}
    for message in history:
        envelope, me = message.envelope, message.pod.me
        answered = open.get(envelope.correlation_id or "")
        if envelope.sender == me and Kind.parse(envelope.kind).family == kinds.PROPOSAL:
            open[envelope.id] = message
        elif answered is not None and (
            rpc.fulfils(envelope, answered.envelope)
            or (envelope.kind, envelope.sender) == (kinds.WITHDRAW, me)
        ):
            del open[answered.id]
    for proposal in open.values():
        reason = {"reason": "I was restarted"}
        await proposal.pod.send(kinds.WITHDRAW, reason, to=proposal.to, correlation_id=proposal.id)


async def run(analyst: Participant) -> None:
    """Join as the analyst and work until cancelled."""
    async with analyst.connect() as pod:
        await analyst.serve(pod)


def main() -> None:
    """Run the analyst against the pod in the environment."""
    try:
        anyio.run(until_signal, lambda: run(agent()))
    except McppError as error:
        raise SystemExit(f"analyst: {error}") from error
