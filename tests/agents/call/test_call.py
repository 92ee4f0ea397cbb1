"""`mcpp call`, and how `mcpp send` learns that a participant is not there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import mcpp
from mcpp_agents.call.commands import main
from mcpp_agents.send.commands import main as send
from tests.interaction.conftest import SocketPod


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[SocketPod]:
    harness = SocketPod()
    harness.add("ada")
    monkeypatch.setenv("MCPP_URL", harness.url)
    monkeypatch.setenv("MCPP_TOKEN", harness.token("ada"))
    yield harness
    harness.close()


def shop() -> mcpp.Participant:
    agent = mcpp.Participant("shop")

    @agent.tool
    async def price(name: str, number: int = 1, tags: list[str] | None = None) -> dict[str, Any]:
        return {"name": name, "number": number, "tags": tags or []}

    @agent.tool
    async def slow(call: mcpp.ToolCall) -> str:
        await call.progress(1, 2, "half")
        return "done"

    @agent.tool
    async def never() -> str:
        await anyio.sleep_forever()
        return ""

    @agent.tool
    async def fail() -> str:
        raise KeyError("k")

    return agent


async def run(sockets: SocketPod, *arguments: str) -> int:
    async with sockets.run(shop()), sockets.connect("bob") as bob:
        await bob.wait_for_presence("shop", 20)
        return await anyio.to_thread.run_sync(main, [*arguments, "--as", "ada"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["name=5", "number=2", 'tags=["a"]'],
        ['{"name": "5", "number": 2, "tags": ["a"]}'],
    ],
)
def test_a_tool_is_called_with_typed_arguments(
    sockets: SocketPod, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert anyio.run(run, sockets, "shop", "price", *arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"name": "5", "number": 2, "tags": ["a"]}


def test_json_prints_the_whole_result_and_progress_is_shown(
    sockets: SocketPod, capsys: pytest.CaptureFixture[str]
) -> None:
    assert anyio.run(run, sockets, "shop", "slow", "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["content"] == [{"type": "text", "text": "done"}]
    assert printed.err == "1/2 half\n"


def test_an_error_is_one(sockets: SocketPod, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(mcpp.ToolError, match="KeyError: 'k'"):
        anyio.run(run, sockets, "shop", "fail")
    assert anyio.run(run, sockets, "shop", "fail", "--json") == 1
    assert json.loads(capsys.readouterr().out)["isError"] is True
    with pytest.raises(mcpp.McppError, match="is not KEY=VALUE"):
        anyio.run(run, sockets, "shop", "price", "name")
    with pytest.raises(mcpp.RemoteError, match=r"\$\.arguments"):
        anyio.run(run, sockets, "shop", "price", "name=a", "number=many")


@pytest.mark.rule("P-50")
def test_a_participant_that_is_absent_is_reported_at_once(sockets: SocketPod) -> None:
    with pytest.raises(mcpp.AbsentError, match=r"did you mean 'shop'\?"):
        anyio.run(run, sockets, "shpo", "price", "name=a")


def test_a_call_that_is_given_up_is_cancelled_without_a_warning(
    sockets: SocketPod, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(mcpp.NoAnswerError):
        anyio.run(run, sockets, "shop", "never", "--timeout", "0.1")
    assert "may be lost" not in caplog.text


@pytest.mark.rule("P-50")
@pytest.mark.parametrize(
    "message",
    [
        ["--kind", "mcp/request:tools/call:price", "--json", "{}"],
        ["--kind", "mcp/proposal:tools/call:price", "--json", "{}"],
        ["Are you there?"],
    ],
)
def test_send_does_not_wait_for_a_participant_that_is_absent(
    sockets: SocketPod, message: list[str]
) -> None:
    with pytest.raises(mcpp.AbsentError):
        send([*message, "--to", "shpo", "--wait", "60", "--as", "ada"])


@pytest.mark.rule("P-50")
def test_send_learns_that_the_participant_left(sockets: SocketPod) -> None:
    agent = mcpp.Participant("shop")
    asked = anyio.Event()

    @agent.tool
    async def price() -> str:
        asked.set()
        await anyio.sleep_forever()
        return ""

    async def leave() -> None:
        async with (
            sockets.connect("bob") as bob,
            anyio.create_task_group() as tasks,
            sockets.run(agent),
        ):
            await bob.wait_for_presence("shop", 20)

            def call() -> int:
                request = ["--kind", "mcp/request:tools/call:price", "--to", "shop", "--json"]
                return send([*request, "{}", "--wait", "60", "--as", "ada"])

            tasks.start_soon(anyio.to_thread.run_sync, call)
            await asked.wait()

    with pytest.raises(ExceptionGroup) as raised:
        anyio.run(leave)
    assert raised.group_contains(mcpp.AbsentError, match="it left before it answered")


def test_only_what_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["shop"])
    assert capsys.readouterr().err.endswith("arguments are required: TOOL\n")


def test_help_names_the_options(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--json" in capsys.readouterr().out
