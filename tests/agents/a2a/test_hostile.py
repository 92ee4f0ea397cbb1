"""Hostile A2A servers and clients: bounds in bytes and time, origins, ids, credentials."""

import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import httpx
import pytest
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.types import (
    Artifact,
    GetTaskRequest,
    Message,
    Part,
    PushNotificationNotSupportedError,
    Role,
    SendMessageRequest,
    StreamResponse,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)

import mcpp
from mcpp.cli.main import main
from mcpp.testing import MemoryPod
from mcpp_agents.a2a.joining.joined_agent import JoinedAgent
from mcpp_agents.a2a.joining.remote_agent import RemoteAgent
from mcpp_agents.a2a.joining.remote_reply import RemoteAgentError, RemoteReply
from mcpp_agents.a2a.parts import data_of
from mcpp_agents.a2a.serving.server import MAX_BODY_BYTES
from tests.agents.a2a.servers import asking, card_of, client_of, events_of, parrot, served
from tests.agents.http_server import QuietHandler, serve_http
from tests.agents.processes import Commands, RunningCommand
from tests.interaction.conftest import SocketPod

pytestmark = pytest.mark.anyio

TOKEN = "a-token-of-twenty-characters"


def chunk(text: str, *, task: str = "t", append: bool = True) -> StreamResponse:
    artifact = Artifact(artifact_id="a", parts=[Part(text=text)])
    update = TaskArtifactUpdateEvent(task_id=task, context_id="c", artifact=artifact, append=append)
    return StreamResponse(artifact_update=update)


def card_text(url: str) -> bytes:
    return json.dumps(agent_card_to_dict(card_of(url, ["1.0"]))).encode()


@contextmanager
def scripted(card_url: str | None, body: bytes, kind: str, **headers: str) -> Iterator[str]:
    """Serve a card and answer every message with a body."""

    class ScriptedHandler(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802
            host = f"http://{self.headers['Host']}"
            text = card_text(card_url or host)
            self.send_response(200)
            self.finish_with(text)

        def do_POST(self) -> None:  # noqa: N802
            self.read_body()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.finish_with(body)

    with serve_http(ScriptedHandler) as url:
        yield url


async def reply_of(pod: MemoryPod, url: str, **options: Any) -> str:
    """Ask the agent at a URL through a pod and return what the asker gets."""
    async with RemoteAgent.open(url, **options) as agent:
        participant = JoinedAgent("remote", agent).participant
        async with pod.run(participant), pod.connect("alice") as alice:
            return (await alice.ask("remote", "hello", timeout=30)).text


def sse(*results: dict[str, Any]) -> bytes:
    lines = (json.dumps({"jsonrpc": "2.0", "id": "1", "result": each}) for each in results)
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def update(task: str) -> dict[str, Any]:
    artifact = {"artifactId": "a", "parts": [{"text": "x"}]}
    return {"artifactUpdate": {"taskId": task, "contextId": "c", "artifact": artifact}}


# --- hostile servers ---


async def test_a_card_that_points_elsewhere_is_refused() -> None:
    with (
        scripted("http://169.254.169.254/latest", b"", "text/plain") as url,
        pytest.raises(RemoteAgentError, match=r"169\.254.*--allow-origin"),
    ):
        async with RemoteAgent.open(url):
            raise AssertionError("it was opened")


async def test_a_credential_is_not_sent_elsewhere_by_a_redirect(pod: MemoryPod) -> None:
    sent: list[str | None] = []

    class Thief(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802
            sent.append(self.headers["Authorization"])
            self.send_response(200)
            self.finish_with(b"{}")

    with serve_http(Thief) as thief:

        class RedirectingHandler(QuietHandler):
            def do_GET(self) -> None:  # noqa: N802
                self.send_response(200)
                self.finish_with(card_text(f"http://{self.headers['Host']}"))

            def do_POST(self) -> None:  # noqa: N802
                self.read_body()
                self.send_response(307)
                self.send_header("Location", thief)
                self.finish_with(b"")

        with serve_http(RedirectingHandler) as url:
            text = await reply_of(pod, url, headers={"Authorization": f"Bearer {TOKEN}"})
    assert text.startswith("I cannot answer this now")
    assert sent == []


@pytest.mark.parametrize(
    ("body", "kind", "headers"),
    [
        (b"x" * 200_000, "application/json", {}),
        (b"data: " + b"x" * 200_000, "text/event-stream", {}),
        (b"not JSON", "application/json", {}),
        (b"data: {\n\n", "text/event-stream", {}),
        (b'data: {"jsonrpc":"2.0","id":"1","result":[]}\n\n', "text/event-stream", {}),
        (b"data: " + b"[" * 50_000 + b"\n\n", "text/event-stream", {}),
        (b"", "text/event-stream", {}),
        (b"{}", "application/json", {"Content_Encoding": "gzip"}),
        (sse(update("t"), update("other")), "text/event-stream", {}),
        (sse({"task": {"contextId": "c"}}), "text/event-stream", {}),
    ],
    ids=["long", "long-event", "text", "cut", "list", "deep", "empty", "gzip", "ids", "no-id"],
)
async def test_whatever_a_server_answers_the_asker_gets_a_reply(
    pod: MemoryPod, body: bytes, kind: str, headers: dict[str, str]
) -> None:
    with scripted(None, body, kind, **headers) as url:
        text = await reply_of(pod, url, max_bytes=100_000)
    assert text.startswith("I cannot answer this now")


async def test_a_long_card_is_refused() -> None:
    class LongCardHandler(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802
            self.send_response(200)
            self.finish_with(b'{"name": "' + b"x" * 200_000 + b'"}')

    with serve_http(LongCardHandler) as url, pytest.raises(RemoteAgentError, match="longer than"):
        async with RemoteAgent.open(url, max_bytes=100_000):
            raise AssertionError("it was opened")


def test_the_answer_of_an_agent_is_bounded() -> None:
    def take_all(events: Iterable[StreamResponse]) -> None:
        reply = RemoteReply()
        for event in events:
            reply.take(event)

    def artifacts(count: int) -> Iterator[StreamResponse]:
        for number in range(count):
            artifact = Artifact(artifact_id=str(number), parts=[Part(text="x")])
            update = TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=artifact)
            yield StreamResponse(artifact_update=update)

    with pytest.raises(RemoteAgentError, match="more than 1048576 bytes"):
        take_all(chunk("y" * 20_000) for _ in range(100))
    with pytest.raises(RemoteAgentError, match="more than 100 artifacts"):
        take_all(artifacts(1000))
    with pytest.raises(RemoteAgentError, match="too long"):
        take_all([chunk("x", task="t" * 1000)])


def test_an_answer_about_another_task_or_context_is_an_error() -> None:
    status = TaskStatus(state=TaskState.TASK_STATE_WORKING)
    for task, context in (("other", "c"), ("t", "other")):
        update = TaskStatusUpdateEvent(task_id=task, context_id=context, status=status)
        with pytest.raises(RemoteAgentError, match="another"):
            RemoteReply("t", "c").take(StreamResponse(status_update=update))


# --- hostile clients ---


@pytest.fixture
async def url(sockets: SocketPod) -> AsyncIterator[str]:
    async with sockets.run(parrot()), served(sockets, "parrot") as url:
        yield url


async def test_a_token_is_needed_for_everything_but_the_card(sockets: SocketPod) -> None:
    async with sockets.run(parrot()), served(sockets, "parrot", token=TOKEN) as url:
        async with httpx.AsyncClient() as http:
            for token in (None, "wrong", TOKEN[:-1], f"{TOKEN}x", "\u00e9"):
                headers = (
                    {} if token is None else {b"Authorization": f"Bearer {token}".encode("latin-1")}
                )
                answer = await http.post(f"{url}/parrot", json={}, headers=headers)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            card = (await http.get(f"{url}/.well-known/agent-card.json")).json()
        assert card["securitySchemes"]["bearer"]["httpAuthSecurityScheme"]["scheme"] == "bearer"
        async with client_of(url, token=TOKEN) as client:
            events = await events_of(client, "hello")
        assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED


async def test_without_a_token_only_names_of_this_machine_are_served(url: str) -> None:
    async with httpx.AsyncClient() as http:
        for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:80", ""):
            answer = await http.post(f"{url}/parrot", json={}, headers={"Host": host})
            assert answer.status_code in (400, 421)
        # What a page of any site may send without being asked: a simple request.
        page = {"Origin": "https://evil.example", "Content-Type": "text/plain"}
        answer = await http.post(f"{url}/parrot", content="{}", headers=page)
        assert answer.status_code == 403
        answer = await http.get(
            f"{url}/.well-known/agent-card.json", headers={"Host": "localhost:1"}
        )
        assert answer.status_code == 200


async def test_a_long_body_is_refused(url: str) -> None:
    async with httpx.AsyncClient() as http:
        answer = await http.post(f"{url}/parrot", content=b" " * (MAX_BODY_BYTES + 1))
        assert answer.status_code == 413

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(MAX_BODY_BYTES // 65_536 + 2):
                yield b" " * 65_536

        answer = await http.post(f"{url}/parrot", content=endless())
        assert answer.status_code == 413


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"jsonrpc":"2.0","id":{},"method":"SendMessage"}',
        b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":[1]}',
        b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"NoSuchMethod"}',
        b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"\\u0000"}}',
    ],
)
async def test_nonsense_gets_an_error_and_the_server_goes_on(url: str, body: bytes) -> None:
    async with httpx.AsyncClient() as http:
        answer = await http.post(f"{url}/parrot", content=body, headers={"A2A-Version": "1.0"})
        assert "error" in answer.json()
    async with client_of(url) as client:
        events = await events_of(client, "still there?")
    assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED


async def test_push_notifications_are_refused(url: str) -> None:
    config = TaskPushNotificationConfig(
        task_id="t", id="p", url="http://169.254.169.254/latest/meta-data"
    )
    async with client_of(url) as client:
        request = asking("hello")
        request.configuration.task_push_notification_config.CopyFrom(config)
        with pytest.raises(PushNotificationNotSupportedError):
            _ = [event async for event in client.send_message(request)]


@pytest.mark.parametrize(
    "message",
    [
        Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="  ")]),
        Message(message_id="m", role=Role.ROLE_USER, parts=[Part(raw=b"\x00", media_type="a/b")]),
        Message(
            message_id="m", role=Role.ROLE_USER, parts=[Part(text="x")], context_id="c" * 10_000
        ),
    ],
    ids=["empty", "bytes", "long-context"],
)
async def test_a_message_that_cannot_be_a_chat_is_refused(url: str, message: Message) -> None:
    async with client_of(url) as client:
        with pytest.raises(Exception, match=r"no text|files only|too long"):
            _ = [event async for event in client.send_message(SendMessageRequest(message=message))]


async def test_a_client_that_stops_reading_does_not_stop_others(sockets: SocketPod) -> None:
    async with sockets.run(parrot()), served(sockets, "parrot") as url, client_of(url) as client:
        lost = client.send_message(asking("left alone"))
        await anext(lost)
        for _ in range(3):
            events = await events_of(client, "still there?")
            assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
        with anyio.move_on_after(5):
            _ = [event async for event in lost]


@pytest.mark.parametrize("arguments", [{"x": "y" * 100_000}, {"deep": 55}], ids=["long", "deep"])
async def test_a_proposal_of_any_form_is_shown_to_the_client(
    sockets: SocketPod, arguments: dict[str, Any]
) -> None:
    if "deep" in arguments:
        for _ in range(arguments["deep"]):
            arguments = {"a": arguments}
    bank, clerk = mcpp.Participant("bank"), mcpp.Participant("clerk")

    @bank.tool
    async def pay(a: Any = None, x: Any = None) -> str:
        return "paid"

    @clerk.on("chat", to_me=True)
    async def work(message: mcpp.Message) -> None:
        async with message.child("reasoning") as thinking:
            proposal = await thinking.propose("bank", "pay", arguments)
            await message.reply((await proposal.result()).text)

    async with (
        sockets.run(bank),
        sockets.run(clerk),
        served(sockets, "clerk") as url,
        client_of(url) as client,
    ):
        events = await events_of(client, "pay it")
        status = events[-1].status_update.status
        assert status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        text, data = status.message.parts
        assert len(text.text) < 5_000
        shown = data_of(data)["arguments"]
        while isinstance(shown, dict) and "a" in shown:
            shown = shown["a"]
            shown = json.loads(shown) if isinstance(shown, str) else shown
        assert shown in ({"deep": 55}, {"x": "y" * 100_000})
        task_id = events[-1].status_update.task_id
        task = await client.get_task(GetTaskRequest(id=task_id))
        assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        events = await events_of(client, "approve", task_id=task_id)
        assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED


# --- the commands ---


async def patient_line(command: RunningCommand, text: str) -> str:
    """Return the next line with a text; these commands import much, and a machine may be busy."""
    for _ in range(4):
        with suppress(TimeoutError):
            return await command.line_with(text)
    return await command.line_with(text)


@pytest.mark.slow
async def test_the_commands_join_and_serve(sockets: SocketPod, commands: Commands) -> None:
    async with (
        sockets.run(parrot()),
        commands.start("a2a", "a2a", "serve", "parrot", "--http", "0") as serve,
        sockets.connect("alice") as alice,
    ):
        url = (await patient_line(serve, "is served at")).split()[-1]
        async with commands.start("echo", "a2a", "join", url, "--as", "echo") as join:
            await patient_line(join, "echo is in the pod")
            reply = await alice.ask("echo", "hello", wait_for_presence=30)
            assert reply.text == "You said: hello"
            assert await join.interrupt() in (0, 130)
        assert await serve.interrupt() in (0, 130)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["serve", "parrot", "--http", "0.0.0.0:0"], "set MCPP_A2A_TOKEN"),
        (["serve", "parrot", "--http", "x"], "[HOST:]PORT"),
        (["join", "http://127.0.0.1:9"], "Network communication error"),
        (["join", "http://127.0.0.1:9", "--header", "x"], "not a header"),
    ],
)
def test_mistakes_are_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    problem: str,
) -> None:
    monkeypatch.delenv("MCPP_A2A_TOKEN", raising=False)
    assert main(["a2a", *arguments]) in (1, 2)
    assert problem in capsys.readouterr().err
