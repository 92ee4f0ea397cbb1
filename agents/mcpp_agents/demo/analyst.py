"""The demo's analyst: goes through the time sheet, month after month, and says what it finds."""

from typing import Any, Final

import anyio

import mcpp
from mcpp import Message, Participant, Pod
from mcpp.errors import CallError, Refused
from mcpp.scope import ContextScope
from mcpp.tasks import background
from mcpp_agents.demo.reviewer import Beat, a_moment

_LONG_MINUTES: Final = 600
# A person may be at lunch; by then the next month's question is more to the point.
_DECISION_SECONDS: Final = 900.0


def agent(beat: Beat = a_moment, rest_seconds: float = 15.0) -> Participant:
    """Return the analyst; `beat` is its pace, `rest_seconds` its pause between months."""
    analyst = Participant("analyst")
    done: list[str] = []

    @analyst.on("chat")
    async def answer(message: Message) -> None:
        if message.to and message.pod.me in message.to:
            last = done[-1] if done else "I have only just begun."
            await message.reply(f"I read the time sheet, a month at a time. {last}")

    @analyst.task
    async def work(pod: Pod) -> None:
        await everybody(pod, "records", "reviewer")
        month = 0
        async with background() as tasks:
            while True:
                month = month % 12 + 1
                try:
                    found = await go_through(pod, month, beat)
                    done.append(f"Month {month}: {found['text']}")
                    await pod.send("chat", {"text": done[-1]})
                    for wrong in found["wrong"]:
                        tasks.start_soon(propose, pod, month, wrong)
                except (CallError, Refused) as error:
                    await pod.send("chat", {"text": f"Month {month} has to wait: {error}"})
                await anyio.sleep(rest_seconds)

    return analyst


async def everybody(pod: Pod, *names: str) -> None:
    """Wait until these participants are here."""
    while not set(names) <= set(pod.participants):  # noqa: ASYNC110  (a demo may look and wait)
        await anyio.sleep(0.1)


async def go_through(pod: Pod, month: int, beat: Beat) -> dict[str, Any]:
    """Read a month page by page; each page is transient, and used up when it is noted."""
    async with pod.context("workflow", goal=f"Check the time sheet of month {month}") as workflow:
        await recall(pod, workflow, month)
        await workflow.call("records", "get_workflow_step", order=1)
        page, pages, total = 1, 1, 0
        odd: list[dict[str, Any]] = []
        while page <= pages:
            result = await workflow.call("records", "search_activities", month=month, page=page)
            activities, pages = result.value["activities"], result.value["pages"]
            await beat()
            minutes = sum(one["minutes"] for one in activities)
            strange = [one for one in activities if one["minutes"] >= _LONG_MINUTES]
            seen = f"Page {page} of {pages}: {len(activities)} activities, {minutes} minutes"
            doubt = "".join(f"; {one['who']}'s {one['minutes']} look wrong" for one in strange)
            await workflow.send("reflection", {"thought": seen + doubt + "."})
            ids = [one["id"] for one in strange]
            await workflow.call(
                "records", "note_page", month=month, page=page, minutes=minutes, odd=ids
            )
            total, odd, page = total + minutes, odd + strange, page + 1
        verdicts = [
            (await workflow.call("reviewer", "review", month=month, timeout=120, **one)).value
            for one in odd
        ]
        wrong = [one for one in verdicts if one["wrong"]]
        text = f"{total // 60} hours on {pages} pages, {len(wrong)} of {len(odd)} doubts confirmed."
        await workflow.conclude(text, confidence=0.9)
        return {"text": text, "wrong": wrong}


async def recall(pod: Pod, workflow: ContextScope, month: int) -> None:
    """Ask memory, where there is one, what was concluded before."""
    if "memory" not in pod.participants:
        return
    goal = f"Check the time sheet of month {month}"
    try:
        pack = (await workflow.call("memory", "context", goal=goal, limit=3)).text
        known = "nothing" if not pack else f"{len(pack.splitlines())} lines"
        await workflow.send("reflection", {"thought": f"Memory has {known} on months before."})
    except CallError as error:
        await workflow.send("reflection", {"thought": f"Without memory, then: {error}"})


async def propose(pod: Pod, month: int, verdict: dict[str, Any]) -> None:
    """Propose a correction, and leave it to a person."""
    id, minutes = verdict["id"], verdict["minutes"]
    proposal = await pod.propose(
        "records", "correct_activity", {"month": month, "id": id, "minutes": minutes}
    )
    text = f"I propose to change activity {id} to {minutes} minutes: approve it, or reject it?"
    await pod.send("chat", {"text": text}, correlation_id=proposal.id)
    try:
        await proposal.result(_DECISION_SECONDS)
        thanks = f"Activity {id} is corrected. Thank you, {proposal.fulfilled_by}."
        await pod.send("chat", {"text": thanks}, correlation_id=proposal.id)
    except CallError:
        await proposal.withdraw("nobody has decided")


def main() -> None:
    """Run it as the demo does."""
    mcpp.run(agent())
