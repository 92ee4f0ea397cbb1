"""`mcpp link` as a process between two gateways."""

import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import mcpp
from mcpp_gateway.edge.server import Gateway
from tests.agents.processes import MCPP
from tests.gateway.sockets import config_text, running, token

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
FREE: dict[str, Any] = {"messages_per_second": 0, "context_messages_per_second": 0}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def address(gateway: Gateway, pod: str) -> str:
    return f"ws://127.0.0.1:{gateway.port}/ws?pod={pod}"


@asynccontextmanager
async def linked(sales: Gateway, ops: Gateway, *arguments: str) -> AsyncIterator[None]:
    """Run a link from when it says so; leaving the block kills it."""
    tokens = {"MCPP_TOKEN_A": token("link"), "MCPP_TOKEN_B": token("link")}
    command = [MCPP, "link", address(sales, "sales"), address(ops, "ops"), *arguments]
    async with await anyio.open_process(
        command, env=os.environ | tokens, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stderr is not None
            text = b""
            with anyio.fail_after(60):
                while b"are linked" not in text:
                    text += await process.stderr.receive()
            yield
        finally:
            process.kill()


@asynccontextmanager
async def pods(folder: Path) -> AsyncIterator[tuple[Gateway, Gateway]]:
    found = []
    for pod in ("sales", "ops"):
        text = config_text({"ada": "", "bob": "", "link": ""}, **FREE)
        text = text.replace("pods.demo.", f"pods.{pod}.")
        found.append(f'{text}\n[log]\nkind = "file"\npath = "{folder}/{pod}"\n')
    async with running(found[0]) as sales, running(found[1]) as ops:
        yield sales, ops


def join(gateway: Gateway, pod: str, name: str) -> AbstractAsyncContextManager[mcpp.Pod]:
    return mcpp.connect(address(gateway, pod), token=token(name))


async def from_link(pod: mcpp.Pod) -> mcpp.Message:
    """Return the next message that the link sent."""
    with anyio.fail_after(60):
        while (message := await anext(pod)).sender != "link":
            pass
    return message


@pytest.mark.rule("P-90", "P-93")
async def test_a_task_is_worked_on_in_another_pod(tmp_path: Path) -> None:
    async with (
        pods(tmp_path) as (sales, ops),
        join(sales, "sales", "ada") as ada,
        join(ops, "ops", "bob") as bob,
        linked(sales, ops, "--filter", "type:task"),
    ):
        await ada.send("chat", "not in a task")
        async with ada.context("task", title="Ship it") as task:
            asked = await task.send("chat", "Can you ship it?")
            message = await from_link(bob)
            assert (message.text, message.sender) == ("Can you ship it?", "link")
            assert message.envelope.extra["origin"]["from"] == "ada"
            assert bob.contexts[f"sales~{task.id}"].title == "Ship it"
            await message.reply("Tomorrow.")
            answer = await from_link(ada)
            assert (answer.text, answer.envelope.correlation_id) == ("Tomorrow.", asked.id)
            assert answer.envelope.to == ("ada",)
            assert answer.context is not None
            assert answer.context.id == task.id
            await task.conclude("It is shipped.")
        end = await from_link(bob)
        assert end.envelope.kind == "conclusion"


@pytest.mark.rule("P-94")
async def test_a_link_that_is_killed_loses_and_repeats_nothing(tmp_path: Path) -> None:
    async with (
        pods(tmp_path) as (sales, ops),
        join(sales, "sales", "ada") as ada,
        join(ops, "ops", "bob") as bob,
    ):
        sent: list[str] = []
        received: list[str] = []

        async def send(count: int) -> None:
            for _ in range(count):
                sent.append(str(len(sent)))
                await ada.send("chat", sent[-1], wait=False)

        async def receive(count: int) -> None:
            with anyio.fail_after(60):
                while len(received) < count:
                    received.append((await from_link(bob)).text)

        async with linked(sales, ops, "--all"):
            await send(300)
            await receive(100)  # it is killed in the middle of the rest
        for _ in range(3):
            await send(200)
            async with linked(sales, ops, "--all"):
                await receive(len(sent) - 100)
        async with linked(sales, ops, "--all"):
            await receive(len(sent))
        assert received == sent


@pytest.mark.rule("P-90", "P-94")
async def test_an_id_that_another_took_first_keeps_nothing_out(tmp_path: Path) -> None:
    async with (
        pods(tmp_path) as (sales, ops),
        join(sales, "sales", "ada") as ada,
        join(ops, "ops", "bob") as bob,
    ):
        taken = mcpp.new_envelope("chat", {"text": "mine"}, sender=bob.me, id="sales~x1")
        await bob.send_envelope(taken)
        asked = mcpp.new_envelope("chat", {"text": "Is it there?"}, sender=ada.me, id="x1")
        async with linked(sales, ops, "--all"):
            await ada.send_envelope(asked)
            message = await from_link(bob)
            assert message.text == "Is it there?"
            assert message.id.startswith("sales~")
            assert message.id != "sales~x1"
            await ada.send("chat", "No hurry.", correlation_id="x1")
            assert (await from_link(bob)).correlation_id == message.id
        async with linked(sales, ops, "--all"):
            await message.reply("Yes.")
            assert (await from_link(ada)).correlation_id == "x1"
            await ada.send("chat", "Thanks.", correlation_id="x1")
            thanks = await from_link(bob)  # and nothing is repeated before it
            assert (thanks.text, thanks.correlation_id) == ("Thanks.", message.id)


@pytest.mark.rule("P-91")
@pytest.mark.parametrize("is_continued", [True, False])
async def test_what_a_continued_link_has_brought_by_another_way_is_not_repeated(
    tmp_path: Path, is_continued: bool
) -> None:
    """As in a ring of three pods, where each link continues the others."""
    async with (
        pods(tmp_path) as (sales, ops),
        join(sales, "sales", "ada") as ada,
        join(ops, "ops", "bob") as bob,
    ):
        path = ["mcpp://sales/x1", "mcpp://third/sales~x1"]
        brought = mcpp.new_envelope(
            "chat",
            {"text": "Is it there?"},
            sender=bob.me,
            id="sales~x1",
            extra={"origin": {"from": "ada", "path": path}},
        )
        await bob.send_envelope(brought)
        asked = mcpp.new_envelope("chat", {"text": "Is it there?"}, sender=ada.me, id="x1")
        through = ("--through", "bob") if is_continued else ()
        async with linked(sales, ops, "--all", *through):
            await ada.send_envelope(asked)
            await ada.send("chat", "No hurry.", correlation_id="x1")
            heard = [(await from_link(bob)).text]
            if heard[0] == "Is it there?":
                heard.append((await from_link(bob)).text)
    assert heard == (["No hurry."] if is_continued else ["Is it there?", "No hurry."])


@pytest.mark.rule("P-91")
async def test_a_link_in_both_directions_doubles_nothing(tmp_path: Path) -> None:
    async with (
        pods(tmp_path) as (sales, ops),
        join(sales, "sales", "ada") as ada,
        join(ops, "ops", "bob") as bob,
        linked(sales, ops, "--all", "--back", "kind:chat"),
    ):
        for number in range(20):
            await ada.send("chat", f"a{number}")
            await bob.send("chat", f"b{number}")
        assert [(await from_link(bob)).text for _ in range(20)] == [f"a{n}" for n in range(20)]
        assert [(await from_link(ada)).text for _ in range(20)] == [f"b{n}" for n in range(20)]
        await ada.send("chat", "end")
        assert (await from_link(bob)).text == "end"


@pytest.mark.rule("P-92", "P-94")
async def test_what_the_target_refuses_does_not_end_a_link(tmp_path: Path) -> None:
    text = config_text({"ada": "", "bob": "", "carol": "person = true", "link": ""}, **FREE)
    limited = text.replace("pods.demo.", "pods.ops.").replace("[limits]", "[limits]\nmax_hops = 2")
    async with (
        running(text.replace("pods.demo.", "pods.sales.")) as sales,
        running(limited) as ops,
        join(sales, "sales", "ada") as ada,
        join(ops, "ops", "bob") as bob,
        linked(sales, ops, "--all"),
    ):
        limit = int(str(ada.limits["max_message_bytes"]))
        await ada.send("chat", "x" * (limit - 300))  # it has an origin there, and a longer id
        for number in range(4):
            await ada.send("chat", str(number))
        kinds = [(await from_link(bob)).envelope.kind for _ in range(4)]
        assert kinds == ["chat", "chat", "link/chat", "link/chat"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["ws://127.0.0.1:1/ws?pod=a", "b", "--all"], "needs a token"),
        (["nowhere", "b", "--all"], "neither an address nor a folder"),
        (["a", "b"], "say what to mirror"),
        (["a", "b", "--filter", "type:"], "type"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: list[str], reason: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [MCPP, "link", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode in (1, 2)
    assert reason in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_pods_of_one_name_are_refused_with_a_hint_and_ctrl_c_ends_a_link(
    tmp_path: Path,
) -> None:
    async with pods(tmp_path) as (sales, _):
        tokens = {"MCPP_TOKEN_A": token("ada"), "MCPP_TOKEN_B": token("bob")}
        command = [MCPP, "link", *2 * [address(sales, "sales")], "--all"]
        ended = await anyio.run_process(command, env=os.environ | tokens, check=False)
        assert ended.returncode in (1, 2)
        assert b"--names" in ended.stderr
        async with await anyio.open_process(
            [*command, "--names", "a", "b"], env=os.environ | tokens, stderr=subprocess.PIPE
        ) as process:
            assert process.stderr is not None
            with anyio.fail_after(30):
                while b"are linked" not in await process.stderr.receive():
                    pass
                process.send_signal(signal.SIGINT)
                assert await process.wait() in (0, 130)
