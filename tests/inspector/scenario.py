"""A demo conversation: an analyst reads pages of a CRM, reasons, concludes and proposes a write."""

from mcpp.protocol.envelope import Context
from mcpp.transient import Hint, consumed, transient, with_context_hints
from tests.inspector.harness import InspectorHarness

REVIEW = Context(id="review-2031", type="workflow")
THOUGHT = Context(id="reason-789", type="reasoning", parent="review-2031")


def text(content: str) -> dict[str, object]:
    return {"content": [{"type": "text", "text": content}]}


def page(number: int) -> dict[str, object]:
    first = 57 + 15 * number
    records = "\n".join(
        f"#{first + i}  2026-11-{i + 1:02d}  web-dev   {25 + 7 * i % 55} min" for i in range(15)
    )
    ids = f"{first}, {first + 1}, {first + 2}…"
    return transient(text(records), f"15 activity records (page {number}/9, IDs: {ids})")


def run_scenario(harness: InspectorHarness) -> None:
    """Fetch two pages, consume one, reason in a sub-context and leave a proposal open."""
    analyst, crm, files = harness.join("analyst"), harness.join("crm"), harness.join("files")
    ada = harness.join("ada")
    ada.chat("Please reclassify November's activities, and tell me before you write anything.")
    analyst.chat("On it: 132 records, nine pages.", to="ada")
    step = analyst.ask("get_workflow_step", {"step": 2}, "crm", context=REVIEW)
    hints = [Hint("search_records", "store_analysis_memory", 2)]
    steps = with_context_hints(text("Steps 2–3 (loop): fetch a page, store a finding."), hints)
    crm.answer(step, "get_workflow_step", steps, context="review-2031")
    finding = "3 activities belong to Web Dev"
    for number in (1, 2):
        arguments = {"month": "2026-11", "page": number}
        fetch = analyst.ask("search_records", arguments, "crm", context="review-2031")
        crm.answer(fetch, "search_records", page(number), context="review-2031")
        if number == 2:
            break
        analyst.think("Two of these are billed twice: is that on purpose?", THOUGHT)
        analyst.think("The invoices carry the same purchase order, so it is one job.", THOUGHT)
        analyst.conclude("Count them once: both invoices carry purchase order 4471.", THOUGHT)
        tool, inside = "store_analysis_memory", "review-2031"
        store = analyst.ask(tool, {"finding": finding}, "crm", context=inside)
        crm.answer(store, tool, consumed(text(f"Stored finding: {finding}.")), context=inside)
    safety = Context(id="check-backup", type="task")
    files.think("Is there a backup of ledger.csv from today?", safety)
    files.conclude("Yes: ledger-2026-11-16.csv, 48 kB, checksum good.", "check-backup")
    analyst.propose(
        "write_file",
        {"path": "ledger.csv", "rows": 8, "mode": "append"},
        "files",
        context="review-2031",
    )
