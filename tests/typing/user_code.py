"""What users write with the SDK: mypy and pyright accept it in their strict modes."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import assert_type

import mcpp
from mcpp.agent.hooks import Handler
from mcpp.errors import LostProposalError
from mcpp.outcomes import ContextState
from mcpp.payloads import Preview, Proposal


@dataclass
class Volume:
    title: str
    year: int


@dataclass
class Database:
    path: str


@asynccontextmanager
async def lifespan(pod: mcpp.Pod) -> AsyncGenerator[Database]:
    yield Database(f"{pod.name}.db")


agent = mcpp.Participant("librarian", lifespan=lifespan, last=10)
failed: list[str] = []
review = mcpp.ContextTemplate("review", steps=["read", "decide"], metadata=Volume)


@agent.tool
async def find(title: str, call: mcpp.ToolCall) -> Volume:
    database: Database = call.state
    async with call.child("search", title=f"Find {title} in {database.path}") as search:
        await search.conclude("found")
    return Volume(title, 1965)


@agent.tool(name="count", transient=True)
def count_books(limit: int = 10) -> list[str]:
    return ["Dune"][:limit]


@agent.use
async def noted(message: mcpp.Message, next: Handler) -> None:
    await next(message)


@agent.on("chat", concurrency=8, order="free", to_me=True, context_type="review")
async def answer(message: mcpp.Message) -> None:
    async with message.child(review, title="A review", year=1965) as context:
        await context.step("read")
    await message.reply(message.text)


@agent.on("task", claim=lambda message: message.id)
async def work(message: mcpp.Message) -> None:
    async with message.pod.claim("shelf", wait=1.0) as claim:
        assert_type(claim.token, int)
    await message.reply({"done": True}, kind="result")


@agent.policy
async def decide(message: mcpp.Message) -> bool | str | None:
    proposal = message.payload_as(Proposal)
    preview = proposal.shown_preview
    assert_type(preview, Preview | None)
    return True if proposal.shown_reason else "give a reason"


@agent.on_join
def join(pod: mcpp.Pod) -> None:
    holders = {name: claim.holder for name, claim in pod.claims.items()}
    assert_type(holders, dict[str, str])


@agent.on_resume
async def resume(proposals: list[mcpp.OpenProposal]) -> None:
    for proposal in proposals:
        try:
            await proposal.result(timeout=5)
        except (mcpp.CallError, LostProposalError) as error:
            failed.append(error.participant)


@agent.on_gap
def missed(gap: mcpp.Gap) -> None:
    failed.append("log" if gap.lost_log else "messages")


async def use() -> None:
    async with mcpp.connect(name="ada") as pod:
        book = await pod.call("librarian", "find", title="Dune", returns=Volume)
        assert_type(book, Volume)
        result = await pod.call("librarian", "count", {"limit": 3}, wait_for_presence=5.0)
        assert_type(result, mcpp.ToolResult)
        proposal = await pod.propose(
            "librarian", "find", title="Dune", reason="why not", preview=("before", "after")
        )
        assert_type(proposal.reason, str | None)
        for message in await pod.open_proposals():
            assert_type(message.position, int)
        found = await pod.context_of("c")
        assert_type(found.state, ContextState)
        sent = await pod.send("chat", "hello", to="librarian")
        await pod.cancel(sent)
        async for received in pod:
            assert_type(received, mcpp.Message)


if __name__ == "__main__":
    mcpp.run(agent)
