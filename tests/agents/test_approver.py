"""The approver: the first rule that matches decides, and people decide the rest."""

import tomllib
from pathlib import Path

import anyio
import pytest

import mcpp
from mcpp import Participant
from mcpp.errors import NoAnswerError
from mcpp.testing import MemoryPod
from mcpp_agents.approver.commands import Judge, RuleError, approver, read_rules
from tests.agents.processes import BOUND, Commands
from tests.interaction.conftest import SocketVenue

pytestmark = pytest.mark.anyio

RULES = """
[[rules]]
then = "leave"
payload = { params = { arguments = { path = "/secret/*" } } }

[[rules]]
then = "fulfil"
from = ["analyst", "bob"]
kind = "mcp/proposal:tools/call:read_*"
to = "files"

[[rules]]
then = "reject"
kind = "mcp/proposal:tools/call:delete_*"
reason = "nothing is deleted here"
"""


def files() -> Participant:
    agent = Participant("files")

    @agent.tool
    async def read_file(path: str) -> str:
        return f"text of {path}"

    @agent.tool
    async def read_forever() -> None:
        await anyio.sleep_forever()

    @agent.tool
    async def delete_file(path: str) -> None:
        raise AssertionError("this must never run")

    return agent


async def test_it_fulfils_rejects_and_leaves_by_the_first_rule_that_matches(pod: MemoryPod) -> None:
    judge = approver(read_rules(tomllib.loads(RULES)))
    async with pod.run(files()), pod.run(judge), pod.connect("bob") as bob:
        with anyio.fail_after(BOUND):
            read = await bob.propose("files", "read_file", path="a.md")
            assert (await read.result()).text == "text of a.md"
            assert read.fulfilled_by == "approver"
            delete = await bob.propose("files", "delete_file", path="a.md")
            secret = await bob.propose("files", "read_file", path="/secret/key")
            last = await bob.propose("files", "read_file", path="b.md")
            assert (await last.result()).text == "text of b.md"
        with pytest.raises(NoAnswerError):
            await delete.result(0)
        assert [(who, no.reason) for who, no in delete.rejections] == [
            ("approver", "nothing is deleted here")
        ]
        with pytest.raises(NoAnswerError):
            await secret.result(0)
        assert secret.rejections == []


async def test_whom_no_rule_names_waits_for_a_person(pod: MemoryPod) -> None:
    judge = Judge(read_rules(tomllib.loads(RULES)))
    proposal = mcpp.new_envelope(
        "mcp/proposal:tools/call:read_file",
        {"method": "tools/call", "params": {"name": "read_file"}},
        sender="stranger",
        to=["files"],
    )
    assert judge.decide(proposal) is None


@pytest.mark.parametrize(("path", "fulfilled"), [("/srv/a", True), ("/srv/../etc/shadow", False)])
async def test_the_rule_in_the_documentation_stays_in_its_folder(
    path: str, fulfilled: bool
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()
    rules = read_rules(tomllib.loads(page.partition("```toml\n")[2].partition("```")[0]))
    proposal = mcpp.new_envelope(
        "mcp/proposal:tools/call:read_file",
        {"method": "tools/call", "params": {"name": "read_file", "arguments": {"path": path}}},
        sender="analyst",
        to=["files"],
    )
    assert Judge(rules).decide(proposal) == (rules[0] if fulfilled else None)


async def test_a_tool_that_hangs_does_not_hold_up_the_next_decision(pod: MemoryPod) -> None:
    judge = approver(read_rules(tomllib.loads(RULES)))
    async with pod.run(files()), pod.run(judge), pod.connect("bob") as bob:
        with anyio.fail_after(BOUND):
            await bob.propose("files", "read_forever")
            read = await bob.propose("files", "read_file", path="a.md")
            assert (await read.result()).text == "text of a.md"


async def test_a_context_s_type_counts_whoever_named_it_and_whenever(pod: MemoryPod) -> None:
    rules = """
        [[rules]]
        then = "leave"
        context = { type = "production" }

        [[rules]]
        then = "fulfil"
        """
    judge = approver(read_rules(tomllib.loads(rules)))
    async with pod.run(files()), pod.connect("bob") as bob:
        await bob.context("production", id="p1").send("chat", {"text": "before the approver"})
        async with pod.run(judge):
            with anyio.fail_after(BOUND):
                while "approver" not in bob.participants:
                    await anext(bob)
                inside = await bob.propose("files", "read_file", path="a", context="p1")
                outside = await bob.propose("files", "read_file", path="b")
                assert (await outside.result()).text == "text of b"
            with pytest.raises(NoAnswerError):
                await inside.result(0)
            assert inside.fulfilled_by is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[rule]]\nthen = 'fulfil'", "rule"),
        ("[[rules]]\nthen = 'burn'", "then"),
        ("[[rules]]\nkind = 'mcp/*'", "then"),
        ("[[rules]]\nthen = 'fulfil'\nwho = 'a'", "who"),
        ("[[rules]]\nthen = 'fulfil'\n[[rules]]\nthen = 'leave'\nkind = []", "rule 2"),
    ],
)
async def test_a_rule_that_cannot_be_meant_is_refused_at_the_start(text: str, reason: str) -> None:
    with pytest.raises(RuleError, match=reason):
        read_rules(tomllib.loads(text))


async def test_the_command_reads_its_rules_from_a_file(
    sockets: SocketVenue, commands: Commands, tmp_path: Path
) -> None:
    (tmp_path / "rules.toml").write_text(RULES)
    async with (
        sockets.run(files()),
        sockets.connect("bob") as bob,
        commands.start("approver", "approver", str(tmp_path / "rules.toml")) as command,
    ):
        await command.line_with("3 rules")
        with anyio.fail_after(BOUND):
            while "approver" not in bob.participants:
                await anext(bob)
            read = await bob.propose("files", "read_file", path="a.md")
            assert (await read.result()).text == "text of a.md"
        assert await command.interrupt() == 0
