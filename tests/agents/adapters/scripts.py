"""What the fake models of the frameworks say, and what they were shown."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mcpp_agents.adapters import FrameworkAgent


@dataclass(frozen=True)
class Step:
    """One reply of a model: a text, or a call after it."""

    text: str = ""
    tool: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass
class ModelScript:
    """The replies of a model in their order. Owns what it was shown."""

    steps: list[Step]
    shown: list[str] = field(default_factory=list)
    offered: list[list[str]] = field(default_factory=list)

    def next(self, shown: str, tools: list[str]) -> Step:
        """Return the next reply. Raises IndexError at the end: a model that fails."""
        self.shown.append(shown)
        self.offered.append(sorted(tools))
        return self.steps[len(self.shown) - 1]


@dataclass(frozen=True)
class Framework:
    """How an agent of a framework is made.

    `adapt` returns an agent in a pod. It has a tool `shred(path)`, which needs approval and appends
    to the list. `ask` runs an agent outside of a pod, with the tools `search` and `store` and the
    collapse of the pair, and returns its answer.
    """

    adapt: Callable[[ModelScript, list[str]], FrameworkAgent]
    ask: Callable[[ModelScript, str], Any]


RECORDS = "record " * 2_000


def search() -> str:
    """Search the records."""
    return RECORDS


def store(text: str) -> str:
    """Store what was found."""
    return f"stored {text}"
