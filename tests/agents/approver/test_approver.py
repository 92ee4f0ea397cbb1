"""The approver: the first matching rule decides; other proposals are left to people."""

import tomllib
from pathlib import Path

import anyio
import pytest

import mcpp
from mcpp import Participant
from mcpp.errors import NoAnswerError
from mcpp.testing import MemoryPod
from mcpp_agents.approver.commands import approver
from mcpp_agents.approver.rules import RuleError, read_rules
from tests.agents.processes import BOUND, Commands
from tests.interaction.conftest import SocketPod

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


async def test_it_fulfils_rejects_and_leaves_by_the_first_matching_rule(pod: MemoryPod) -> None:
    agent = approver(read_rules(tomllib.loads(RULES)))
    async with pod.run(files()), pod.run(agent), pod.connect("bob") as bob:
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


async def test_a_proposal_that_no_rule_matches_is_left_to_people(pod: MemoryPod) -> None:
    rules = read_rules(tomllib.loads(RULES))
    proposal = mcpp.new_envelope(
        "mcp/proposal:tools/call:read_file",
        {"method": "tools/call", "params": {"name": "read_file"}},
        sender="stranger",
        to=["files"],
    )
    assert rules.decide(proposal) is None


@pytest.mark.parametrize(("path", "fulfilled"), [("/srv/a", True), ("/srv/../etc/shadow", False)])
async def test_the_documented_rule_matches_only_paths_in_its_folder(
    path: str, fulfilled: bool
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "agents.md").read_text()
    rules = read_rules(tomllib.loads(page.partition("```toml\n")[2].partition("```")[0]))
    proposal = mcpp.new_envelope(
        "mcp/proposal:tools/call:read_file",
        {"method": "tools/call", "params": {"name": "read_file", "arguments": {"path": path}}},
        sender="analyst",
        to=["files"],
    )
    assert rules.decide(proposal) == (rules.rules[0] if fulfilled else None)


async def test_a_tool_that_hangs_does_not_delay_the_next_decision(pod: MemoryPod) -> None:
    agent = approver(read_rules(tomllib.loads(RULES)))
    async with pod.run(files()), pod.run(agent), pod.connect("bob") as bob:
        with anyio.fail_after(BOUND):
            await bob.propose("files", "read_forever")
            read = await bob.propose("files", "read_file", path="a.md")
            assert (await read.result()).text == "text of a.md"


async def test_a_rule_matches_a_context_type_that_was_fixed_before_the_approver_joined(
    pod: MemoryPod,
) -> None:
    rules = """
        [[rules]]
        then = "leave"
        context = { type = "production" }

        [[rules]]
        then = "fulfil"
        """
    agent = approver(read_rules(tomllib.loads(rules)))
    async with pod.run(files()), pod.connect("bob") as bob:
        await bob.context("production", id="p1").send("chat", {"text": "before the approver"})
        async with pod.run(agent):
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
async def test_an_invalid_rule_is_refused_at_the_start(text: str, reason: str) -> None:
    with pytest.raises(RuleError, match=reason):
        read_rules(tomllib.loads(text))


async def test_the_command_reads_its_rules_from_a_file(
    sockets: SocketPod, commands: Commands, tmp_path: Path
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


@pytest.mark.rule("P-51")
async def test_a_decision_is_logged_with_reason_and_preview(
    pod: MemoryPod, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mcpp.approver")
    async with pod.run(files()), pod.connect("bob") as bob:
        # It was made before the approver joined.
        read = await bob.propose(
            "files", "read_file", path="a.md", reason="to\nknow", preview=("old", "new")
        )
        async with pod.run(approver(read_rules(tomllib.loads(RULES)))):
            await read.result(BOUND)
    lines = [record.getMessage() for record in caplog.records if record.name == "mcpp.approver"]
    assert lines == [
        'fulfil: bob proposes read_file(path="a.md") because: to know',
        "  - old",
        "  + new",
    ]
