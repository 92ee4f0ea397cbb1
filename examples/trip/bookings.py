"""Books trips. Only people should call it; others propose."""

import mcpp

agent = mcpp.Participant("bookings")


@agent.tool
async def book(hotel: str, train: str) -> str:
    """Book a hotel and a train."""
    return f"Booked: {hotel}, {train}."


if __name__ == "__main__":
    mcpp.run(agent)
