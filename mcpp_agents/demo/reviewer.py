"""The demo's reviewer: reasons about one suspicious record in nested contexts.

The question arrives as a tool call inside the analyst's workflow. The reasoning is a child context
of that workflow, and each check is a child of the reasoning, so that other participants can follow
it, fold it or filter it out.
"""

from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any, Final

import anyio

import mcpp

# Smaller factor first: most values with a zero too many are also divisible by 60.
TYPING_ERRORS: Final = {10: "a zero too many", 60: "minutes were typed as hours"}
_LONGEST_MINUTES: Final = 240  # plausible maximum for one activity
_DEFAULT_MINUTES: Final = 60.0  # used when a person has no history
PAUSE_SECONDS: Final = 1.5

Pause = Callable[[], Awaitable[None]]


async def reading_pause() -> None:
    """Sleep long enough for a person to read the last message."""
    await anyio.sleep(PAUSE_SECONDS)


def agent(pause: Pause = reading_pause) -> mcpp.Participant:
    """Return the reviewer. `pause` is awaited between its steps."""
    reviewer = mcpp.Participant("reviewer")

    @reviewer.tool
    async def review(
        month: int, id: int, who: str, work: str, minutes: int, call: mcpp.ToolCall
    ) -> dict[str, Any]:
        """Decide whether an activity's minutes are plausible, and what they should be."""
        asked_in = call.envelope.context
        what = f"{who}'s {minutes} minutes of {work}"
        trigger = f"{what} on the time sheet of month {month}"
        async with call.pod.context("reasoning", parent=asked_in, trigger=trigger) as thinking:
            thought = f"{who} wrote down {minutes} minutes of {work}. That is {minutes / 60:.0f} h."
            await thinking.send("reflection", {"thought": thought})
            await pause()
            usual = await compare(thinking, who=who, work=work, month=month)
            await call.progress(1, 2, "compared")
            factor = await find_typing_error(thinking, what, minutes, usual)
            should_be = minutes if factor == 1 else minutes // factor
            verdict = "are plausible" if factor == 1 else f"should be {should_be}"
            await thinking.conclude(
                f"Activity {id} on the time sheet of month {month}: {what} {verdict}.",
                confidence=0.6 if factor == 1 else 0.95,
            )
            return {"id": id, "minutes": should_be, "wrong": factor != 1}

    async def compare(thinking: mcpp.ContextScope, *, who: str, work: str, month: int) -> float:
        # Intermediate steps stay out of memory (M-33); the verdict, which includes their results,
        # is stored.
        about = f"{who}, {work}"
        async with thinking.child("comparison", of=about, memory="off") as comparing:
            result = await comparing.call("records", "history", who=who, work=work, month=month)
            await pause()
            if not result.value:
                await comparing.conclude(f"There is no other {work} of {who}'s to compare with.")
                return _DEFAULT_MINUTES
            usual = float(median(result.value))
            await comparing.conclude(f"{who} usually takes {usual:.0f} minutes for {work}.")
            return usual

    async def find_typing_error(
        thinking: mcpp.ContextScope, what: str, minutes: int, usual: float
    ) -> int:
        async with thinking.child("hypothesis", of=what, memory="off") as testing:
            for factor, reason in TYPING_ERRORS.items():
                await testing.send("reflection", {"thought": f"Perhaps {reason}?"})
                await pause()
                if explains(factor, minutes, usual):
                    await testing.conclude(f"{what} are a typing error: {reason}.")
                    return factor
            await testing.conclude(f"No typing error explains {what}.")
            return 1

    return reviewer


def explains(factor: int, minutes: int, usual: float) -> bool:
    """Return whether `minutes` is implausible as it is, but plausible divided by `factor`."""
    return minutes % factor == 0 and minutes > 3 * usual and minutes / factor <= _LONGEST_MINUTES


def main() -> None:
    """Run the reviewer against the pod in the environment."""
    mcpp.run(agent())
