"""The line that a command prints once its agent has joined a pod."""

import sys

from mcpp import Participant, Pod


def announce_join(agent: Participant, command: str) -> None:
    """Print a line to standard error when the agent has joined a pod."""

    @agent.on_join
    def announce(pod: Pod) -> None:
        sys.stderr.write(f"mcpp {command}: {pod.me} is in the pod\n")
