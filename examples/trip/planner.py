"""Plans trips: workers search, a person approves the booking.

Say `@planner Paris` in `mcpp chat`. The planner may be killed while the person is at lunch: when it
runs again, it gets its proposal back, with the decision that was made meanwhile.
"""

import anyio

import mcpp

TRIP = mcpp.ContextTemplate("trip", steps=["search", "approval", "booking"])

agent = mcpp.Participant("planner")
answers: dict[str, str] = {}
answered: dict[str, anyio.Event] = {}


@agent.on("chat", to_me=True, concurrency=8, order="free")
async def plan(message: mcpp.Message) -> None:
    city = message.text.removeprefix("@planner").strip()
    async with message.child(TRIP, title=f"Trip to {city}", asked_by=message.sender) as trip:
        await trip.step("search")
        hotel = await search(trip, "hotel", city)
        train = await search(trip, "train", city)
        await trip.step("approval")
        proposal = await trip.propose(
            "bookings",
            "book",
            hotel=hotel,
            train=train,
            reason=f"{message.sender} wants to go to {city}.",
            preview=(None, f"{hotel}\n{train}"),
        )
        await finish(proposal, trip, message.sender)


async def search(trip: mcpp.ContextScope, what: str, city: str) -> str:
    """Let any worker do a search, and return what it found."""
    task = await trip.send("task", {"what": what, "city": city})
    answered[task.id] = anyio.Event()
    if task.id not in answers:
        await answered[task.id].wait()
    return answers.pop(task.id)


@agent.on("result", to_me=True)
async def note(message: mcpp.Message) -> None:
    if message.correlation_id is not None:
        answers[message.correlation_id] = message.payload["text"]
        if message.correlation_id in answered:
            answered.pop(message.correlation_id).set()


async def finish(proposal: mcpp.OpenProposal, trip: mcpp.ContextScope, person: str) -> None:
    """Wait for the decision, however long it takes, and tell the person what came of it."""
    result = await proposal.result()
    await trip.step("booking")
    await trip.conclude({"text": result.text})
    await trip.send("chat", result.text, to=person)


@agent.on_resume
async def resume(proposals: list[mcpp.OpenProposal]) -> None:
    """Go on where the process before this one has stopped."""
    async with anyio.create_task_group() as tasks:
        for proposal in proposals:
            tasks.start_soon(go_on, proposal)


async def go_on(proposal: mcpp.OpenProposal) -> None:
    context = proposal.envelope.context
    if context is None:
        return
    begun = await proposal.pod.context_of(context.id)
    first = begun.node.envelopes[0].context
    person = "" if first is None else first.metadata["asked_by"]
    async with proposal.pod.context(TRIP, id=context.id) as trip:
        await finish(proposal, trip, person)


if __name__ == "__main__":
    mcpp.run(agent)
