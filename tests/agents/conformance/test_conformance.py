"""The official suite through fixture, bridge, pod, and the gateway's `/mcp`.

Scores may rise, not fall. A check that fails is named here with its reason.
"""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from mcpp.client.tasks import background
from mcpp_agents.bridge.agent import bridge
from mcpp_agents.bridge.openers import over_stdio
from mcpp_agents.bridge.questions import Questions
from mcpp_agents.bridge.server_questions import ServerQuestions
from mcpp_agents.bridge.upstream import Upstream
from tests.agents.conformance.suite import command, run_scenarios, run_server_suite
from tests.agents.conformance.token_proxy import token_proxy
from tests.agents.processes import BOUND
from tests.interaction.conftest import SocketPod

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
FIXTURE = [sys.executable, str(Path(__file__).with_name("fixture_server.py"))]
TASK_FIXTURE = [sys.executable, str(Path(__file__).with_name("task_server.py"))]
# How many checks have to pass, of those that count for a revision.
FLOORS = {"2025-11-25": 70, "2026-07-28": 120}
KNOWN_FAILURES: dict[str, str] = {}
# The extension of tasks, which no revision requires.
TASK_SCENARIOS = (
    "tasks-lifecycle", "tasks-capability-negotiation", "tasks-wire-fields",
    "tasks-request-state-removal", "tasks-mrtr-input", "tasks-request-headers",
    "tasks-dispatch-and-envelope", "tasks-required-task-error",
    "tasks-mrtr-composition",
)  # fmt: skip
TASK_FLOOR = 44


@asynccontextmanager
async def served_fixture(sockets: SocketPod, *command: str) -> AsyncIterator[str]:
    """Bridge the fixture into the pod, and yield the URL at which a client reaches it."""
    questions = Questions()
    opening = over_stdio(list(command))
    upstream = Upstream(opening, name="fixture", questions=ServerQuestions(questions))
    sockets.add("suite")
    async with background() as tasks:
        with anyio.fail_after(3 * BOUND):
            await tasks.start(upstream.keep_running)
        async with (
            sockets.run(bridge("fixture", upstream, questions)),
            token_proxy(sockets.port, sockets.token("suite"), "/mcp/fixture") as url,
        ):
            yield url


@pytest.mark.parametrize("limits", [{"messages_per_second": 1000, "burst": 5000}])
@pytest.mark.parametrize(
    ("revision", "arguments"), [("2025-11-25", ["--legacy"]), ("2026-07-28", [])]
)
async def test_a_bridged_server_passes_the_suite_through_the_pod(
    sockets: SocketPod, tmp_path: Path, revision: str, arguments: list[str]
) -> None:
    command()
    async with served_fixture(sockets, *FIXTURE, *arguments) as url:
        score = await run_server_suite(url, revision, tmp_path)
    assert {id: text for id, text in score.failed.items() if id not in KNOWN_FAILURES} == {}
    assert score.passed >= FLOORS[revision]
    assert score.rate >= 0.95


@pytest.mark.parametrize("limits", [{"messages_per_second": 1000, "burst": 5000}])
async def test_tasks_of_a_bridged_server_pass_the_suite_through_the_pod(
    sockets: SocketPod, tmp_path: Path
) -> None:
    command()
    async with served_fixture(sockets, *TASK_FIXTURE) as url:
        score = await run_scenarios(url, TASK_SCENARIOS, tmp_path)
    assert score.failed == {}
    assert score.passed >= TASK_FLOOR


@pytest.mark.parametrize(
    "scenario",
    ["auth/metadata-default", "auth/scope-from-www-authenticate", "auth/token-endpoint-auth-none"],
)
async def test_a_bridge_signs_in_to_a_hosted_server(scenario: str, tmp_path: Path) -> None:
    """The suite plays the server and its authorization server, on this machine."""
    client = f"{sys.executable} {Path(__file__).with_name('signing_client.py')}"
    environment = os.environ | {"MCPP_TEST_TOKENS": str(tmp_path / "tokens")}
    with anyio.fail_after(3 * BOUND):
        done = await anyio.run_process(
            [*command(), "client", "--command", client, "--scenario", scenario],
            env=environment,
            check=False,
        )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    [kept] = (tmp_path / "tokens").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "access_token" in kept.read_text()
