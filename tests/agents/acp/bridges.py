"""Runs coding agents as participants of a pod, for tests."""

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpp import Message, Pod
from mcpp.client.tasks import background
from mcpp.testing import MemoryPod
from mcpp_agents.acp.agent_process import Launch
from mcpp_agents.acp.limits import AcpLimits
from mcpp_agents.acp.participant import AcpBridge, AcpSettings
from mcpp_agents.bridge.server_process import server_environment

SCRIPTED = (sys.executable, str(Path(__file__).parent / "scripted_agent.py"))


@dataclass
class Folders:
    """Where an agent works, and where it and its bridge keep what they need."""

    work: Path
    state: Path


@asynccontextmanager
async def coding_agent(
    pod: MemoryPod,
    folders: Folders,
    name: str = "coder",
    *,
    command: Sequence[str] = SCRIPTED,
    environment: Mapping[str, str] | None = None,
    limits: AcpLimits | None = None,
    offers_files: bool = True,
    offers_terminals: bool = False,
    **settings: Any,
) -> AsyncIterator[AcpBridge]:
    """Run an agent and its participant for the duration of the block."""
    given = server_environment((), {"PATH": "/usr/bin:/bin", "SECRET": "x"})
    given["KEPT"] = str(folders.state / f"{name}-kept.json")
    launch = Launch(
        command,
        {**given, **(environment or {})},
        folders.work,
        offers_files=offers_files,
        offers_terminals=offers_terminals,
    )
    bridge = AcpBridge(
        name,
        AcpSettings(
            launch,
            sessions=folders.state / f"{name}-sessions.json",
            limits=limits or AcpLimits(),
            **settings,
        ),
    )
    async with background() as tasks:
        await tasks.start(bridge.agent.keep_running)
        async with pod.run(bridge.participant):
            yield bridge


async def said(person: Pod, kind: str, text: str = "") -> Message:
    """Return the next message of a kind whose text contains `text`."""
    async for message in person:
        if message.kind.startswith(kind) and text in message.text:
            return message
    raise AssertionError("the connection has ended")
