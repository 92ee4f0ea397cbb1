"""What commands say when they have joined a pod: to the terminal, and to others by a card."""

import sys
from collections.abc import Mapping
from typing import Any, Final

from mcpp import Participant, Pod

# The card of a person (P-72). The inspector announces the same one: a person may use both.
PERSON: Final[Mapping[str, Any]] = {
    "description": "A person.",
    "tools": [],
    "answers": ["chat", "elicitation"],
}
# Of a participant that only reads.
READER: Final[Mapping[str, Any]] = {"description": "Reads along.", "tools": []}


def announce_join(agent: Participant, command: str) -> None:
    """Print a line to standard error when the agent has joined a pod."""

    @agent.on_join
    def announce(pod: Pod) -> None:
        sys.stderr.write(f"mcpp {command}: {pod.me} is in the pod\n")
