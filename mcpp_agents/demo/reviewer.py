"""The demo's reviewer: thinks about one odd record, in contexts within contexts.

The question comes as a tool call inside the analyst's workflow; the reasoning hangs below it, and
each doubt is a context of its own below that. Others watch, fold it, or filter it away.
"""

from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any, Final

import anyio

import mcpp
from mcpp import ContextScope, Participant, ToolCall

# The smaller one first: most of what has a zero too many is whole hours, too.
SLIPS: Final = {10: "a zero too many", 60: "minutes were typed as hours"}
_LONGEST_MINUTES: Final = 240  # that somebody works on one thing
_USUAL_MINUTES: Final = 60.0  # where nothing is known of somebody
BEAT_SECONDS: Final = 1.5

Beat = Callable[[], Awaitable[None]]


async def a_moment() -> None:
    """Wait as long as a reader needs."""
    await anyio.sleep(BEAT_SECONDS)


def agent(beat: Beat = a_moment) -> Participant:
    """Return the reviewer; `beat` is its pace."""
    reviewer = Participant("reviewer")

    @reviewer.tool
    async def review(
        month: int, id: int, who: str, work: str, minutes: int, call: ToolCall
    ) -> dict[str, Any]:
        """Judge whether an activity's minutes can be right, and what they should be."""
        asked_in = call.envelope.context
        what = f"{who}'s {minutes} minutes of {work}"
        trigger = f"{what} on the time sheet of month {month}"
        async with call.pod.context("reasoning", parent=asked_in, trigger=trigger) as thinking:
            thought = f"{who} wrote down {minutes} minutes of {work}. That is {minutes / 60:.0f} h."
            await thinking.send("reflection", {"thought": thought})
            await beat()
            usual = await compare(thinking, who=who, work=work, month=month)
            await call.progress(1, 2, "compared")
            factor = await find_slip(thinking, what, minutes, usual)
            should_be = minutes if factor == 1 else minutes // factor
            verdict = "are plausible" if factor == 1 else f"should be {should_be}"
            await thinking.conclude(
                f"Activity {id} on the time sheet of month {month}: {what} {verdict}.",
                confidence=0.6 if factor == 1 else 0.95,
            )
            return {"id": id, "minutes": should_be, "wrong": factor != 1}

    async def compare(thinking: ContextScope, *, who: str, work: str, month: int) -> float:
        # Steps on the way are not remembered (M-33): the verdict is, and has what came of them.
        about = f"{who}, {work}"
        async with thinking.child("comparison", of=about, memory="off") as comparing:
            result = await comparing.call("records", "history", who=who, work=work, month=month)
            await beat()
            if not result.value:
                await comparing.conclude(f"There is no other {work} of {who}'s to compare with.")
                return _USUAL_MINUTES
            usual = float(median(result.value))
            await comparing.conclude(f"{who} usually takes {usual:.0f} minutes for {work}.")
            return usual

    async def find_slip(thinking: ContextScope, what: str, minutes: int, usual: float) -> int:
        async with thinking.child("hypothesis", of=what, memory="off") as testing:
            for factor, reason in SLIPS.items():
                await testing.send("reflection", {"thought": f"Perhaps {reason}?"})
                await beat()
                if explains(factor, minutes, usual):
                    await testing.conclude(f"{what} are a slip: {reason}.")
                    return factor
            await testing.conclude(f"No slip of the pen explains {what}.")
            return 1

    return reviewer


def explains(factor: int, minutes: int, usual: float) -> bool:
    """Tell whether minutes that are so many times too many make sense without that."""
    return minutes % factor == 0 and minutes > 3 * usual and minutes / factor <= _LONGEST_MINUTES


def main() -> None:
    """Run it as the demo does."""
    mcpp.run(agent())
