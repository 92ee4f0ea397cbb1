"""The demo's tool server: a time sheet that is read page by page.

Pages are marked as transient, and the workflow declares that `note_page` consumes them.
"""

import random
from typing import Annotated, Any, Final

import msgspec

import mcpp
from mcpp.agent.tools import as_result
from mcpp.transient import Workflow, WorkflowStep, consumed, mark_by_rule

PAGE_SIZE: Final = 15
KEPT_MONTHS: Final = 24
PEOPLE: Final = ("Ada", "Grace", "Edsger", "Barbara", "Tony")
WORK: Final = ("review", "design", "meeting", "support", "writing", "testing")

WORKFLOW: Final = Workflow(
    [
        WorkflowStep(
            title="Read a page of activities",
            tool="search_activities",
            consumed_by="note_page",
            loop_group="pages",
        ),
        WorkflowStep(title="Note what matters on it", tool="note_page", loop_group="pages"),
        WorkflowStep(title="Have what looks wrong reviewed, then conclude"),
    ]
)


class Activity(msgspec.Struct):
    """One entry of the time sheet."""

    id: int
    who: str
    work: str
    minutes: int


def agent() -> mcpp.Participant:
    """Return the tool server. It keeps corrections to the last `KEPT_MONTHS` months read."""
    records = mcpp.Participant("records")
    months: dict[int, list[Activity]] = {}

    def activities_of(month: int) -> list[Activity]:
        if month not in months:
            months[month] = generate_month(month)
            if len(months) > KEPT_MONTHS:
                del months[next(iter(months))]
        return months[month]

    @records.tool
    async def get_workflow_step(order: Annotated[int, msgspec.Meta(ge=1)]) -> mcpp.ToolResult:
        """Return the instructions for a step; for a loop, those of all its steps."""
        return mcpp.ToolResult.from_json(WORKFLOW.get_workflow_step(order))

    @records.tool
    async def search_activities(month: int, page: int = 1) -> mcpp.ToolResult:
        """Return a page of a month's activities."""
        found = activities_of(month)
        pages = -(-len(found) // PAGE_SIZE)
        shown = found[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
        result = {"activities": msgspec.to_builtins(shown), "page": page, "pages": pages}
        return mcpp.ToolResult.from_json(mark_by_rule(as_result(result).to_json(), "activity"))

    @records.tool
    async def note_page(month: int, page: int, minutes: int, odd: list[int]) -> mcpp.ToolResult:
        """Note a page's total and its suspicious entries; this consumes the page."""
        noted = f"Noted: page {page} of month {month}, {minutes} minutes, {len(odd)} to check"
        return mcpp.ToolResult.from_json(consumed(as_result(noted).to_json()))

    @records.tool
    async def history(who: str, work: str, month: int) -> list[int]:
        """Return the minutes that a person has recently spent on a kind of work."""
        return [
            one.minutes
            for earlier in range(max(1, month - 3), month + 1)
            for one in activities_of(earlier)
            if (one.who, one.work) == (who, work) and one.minutes < 600
        ]

    @records.tool
    async def correct_activity(month: int, id: int, minutes: int) -> dict[str, Any]:
        """Change the minutes of an activity. Propose this call, so that a person can approve it."""
        for one in activities_of(month):
            if one.id == id:
                before, one.minutes = one.minutes, minutes
                return {"id": id, "before": before, "after": minutes}
        raise ValueError(f"there is no activity {id} in month {month}")

    return records


def generate_month(month: int) -> list[Activity]:
    """Generate a month's activities, one of them wrong. The same month gives the same result."""
    chance = random.Random(month)
    first = 1000 * month
    found = [
        Activity(
            first + number, chance.choice(PEOPLE), chance.choice(WORK), chance.randint(15, 180)
        )
        for number in range(chance.randint(50, 70))
    ]
    wrong = chance.choice([one for one in found if one.minutes >= 60])
    wrong.minutes *= 10 if chance.random() < 0.5 else 60
    return found


def main() -> None:
    """Run the records server against the pod in the environment."""
    mcpp.run(agent())
