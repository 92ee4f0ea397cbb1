"""The WebSocket transport: refused connections, TLS, fragmented frames, late gateways."""

import asyncio
import ssl
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

import mcpp
from mcpp import encode, new_envelope
from mcpp.cli.main import main
from mcpp.client.connection import Options
from mcpp.client.local_pod import Address
from mcpp.client.tasks import background
from mcpp.errors import AddressError, BusyError, JoinError, TooLargeError, UnreachableError
from mcpp.session.resumption import Join
from mcpp.transports.websocket import WebSocketConnector
from tests.interaction.conftest import QUICK, SocketPod

pytestmark = pytest.mark.anyio


@pytest.mark.rule("P-12")
async def test_refused_connections_are_final_and_typed(sockets: SocketPod) -> None:
    sockets.add("alice")
    for url, token, status in (
        (sockets.url, "wrong-token-0123456789", 401),
        (sockets.url.replace("pod=test", "pod=other"), sockets.token("alice"), 403),
        (sockets.url + "&last=many", sockets.token("alice"), 400),
    ):
        with pytest.raises(JoinError) as caught:
            async with mcpp.connect(url, token=token, options=QUICK):
                pass
        assert caught.value.status == status
        assert token not in str(caught.value)


@pytest.mark.rule("P-12")
async def test_a_gateway_that_is_asked_too_often_says_when_to_retry(
    sockets: SocketPod,
) -> None:
    sockets.add("alice")
    connector = WebSocketConnector(sockets.url, sockets.token("alice"))

    async def reconnect() -> None:
        while True:
            websocket = await connector.open(Join())
            await websocket.receive()
            await websocket.aclose()

    with anyio.fail_after(10), pytest.raises(BusyError) as caught:
        await reconnect()
    assert caught.value.retry_after_seconds == 1


@pytest.mark.parametrize("token", ["", "two words", "a-token-from-a-file\n", "x\r\nHost: y"])
async def test_a_malformed_token_is_never_sent(token: str, free_tcp_port: int) -> None:
    url = f"ws://127.0.0.1:{free_tcp_port}/ws"
    with pytest.raises(AddressError, match="token may contain only") as caught:
        async with mcpp.connect(url, token=token):
            pass
    assert caught.value.url == url
    assert not token or token not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["ftp://x/", "ws://[::1/", "ws://x:port/", "ws://x:99999/", "nothing"]
)
async def test_a_malformed_url_is_an_address_error(url: str) -> None:
    with pytest.raises(AddressError, match="not a WebSocket URL") as caught:
        async with mcpp.connect(url, token="x" * 20):
            pass
    assert caught.value.url == url


async def test_a_gateway_without_tls_at_a_secure_address_is_unreachable(
    sockets: SocketPod,
) -> None:
    soon = Options(open_seconds=0.2)  # the gateway waits for the rest of a request
    with pytest.raises(UnreachableError):
        async with mcpp.connect(sockets.url.replace("ws:", "wss:"), token="x" * 20, options=soon):
            pass


async def test_a_gateway_that_is_not_running_is_an_error_at_once(free_tcp_port: int) -> None:
    with pytest.raises(UnreachableError, match=str(free_tcp_port)):
        async with mcpp.connect(f"ws://127.0.0.1:{free_tcp_port}/ws", token="x" * 20):
            pass


async def test_a_patient_participant_waits_for_a_gateway(sockets: SocketPod) -> None:
    sockets.add("alice")
    sockets.drain()
    patient = Options(keep_trying=True, backoff=lambda attempt: 0.01)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, sockets.start)
        with anyio.fail_after(10):
            async with sockets.connect("alice", options=patient) as alice:
                await alice.send("chat", {"text": "at last"})


async def test_a_client_reconnects_after_a_gateway_drained(sockets: SocketPod) -> None:
    async with sockets.connect("alice") as alice:
        await alice.send("chat", {"text": "before"})
        await anyio.to_thread.run_sync(sockets.drain)
        await anyio.to_thread.run_sync(sockets.start)
        with anyio.fail_after(10):
            await alice.send("chat", {"text": "after"})


@pytest.mark.rule("P-07")
async def test_a_lower_size_limit_after_a_restart_is_respected(
    sockets: SocketPod,
) -> None:
    # Reconnect only after the old gateway has closed its port.
    options = Options(backoff=lambda attempt: 0.5)
    async with sockets.connect("alice", options=options) as alice:
        await anyio.to_thread.run_sync(sockets.drain)
        sockets.limits["max_message_bytes"] = 2000
        async with background() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, sockets.start)
            with anyio.fail_after(5), pytest.raises(TooLargeError):
                await alice.send("chat", {"text": "x" * 3000})
        await alice.send("chat", {"text": "short"})


async def test_a_revoked_token_closes_the_connection_for_good(sockets: SocketPod) -> None:
    async with sockets.connect("alice") as alice:
        sockets.remove("alice")
        with anyio.fail_after(5), pytest.raises(mcpp.errors.ClosedError) as caught:
            await anext(alice)
        assert caught.value.code == 4501


async def test_the_token_is_not_logged(sockets: SocketPod, caplog: Any) -> None:
    caplog.set_level(0)
    async with sockets.connect("alice"):
        pass
    assert sockets.token("alice") not in caplog.text


# --- a minimal server, for behaviour that our gateway does not show ---

WELCOME = encode(
    new_envelope(
        "system/welcome",
        {
            "you": {"id": "alice"},
            "participants": [],
            "pod": {"name": "p", "epoch": "e"},
            "limits": {},
            "contexts": [],
            "resumed": False,
            "replayed": 0,
        },
        sender="system:gateway",
    )
)


def frame(data: bytes, opcode: Opcode = Opcode.TEXT, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=False)


async def serve(stream: SocketStream, pieces: list[bytes]) -> None:
    """Accept the upgrade, then write the pieces as they are."""
    async with stream:
        protocol = ServerProtocol()
        while not (events := protocol.events_received()):
            protocol.receive_data(await stream.receive())
        assert isinstance(events[0], Request)
        protocol.send_response(protocol.accept(events[0]))
        head = b"".join(protocol.data_to_send())
        for piece in [head + pieces[0], *pieces[1:]]:
            await stream.send(piece)
            await anyio.lowlevel.checkpoint()
        await anyio.sleep_forever()


def pieces_of(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


TEXTS = [encode(new_envelope("chat", {"text": "é" * n}, sender="b")) for n in (1, 200, 40_000)]
STREAM = b"".join(
    [
        frame(WELCOME),
        frame(TEXTS[0]),
        frame(b"are you there?", Opcode.PING),
        frame(TEXTS[1][:100], fin=False),
        frame(b"in between", Opcode.PING),
        frame(TEXTS[1][100:150], Opcode.CONT, fin=False),
        frame(TEXTS[1][150:], Opcode.CONT),
        frame(TEXTS[2]),
    ]
)


@pytest.mark.parametrize("size", [1 << 20, 1000, 61])
async def test_frames_are_read_however_they_are_split(size: int) -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, lambda stream: serve(stream, pieces_of(STREAM, size)))
        with anyio.fail_after(20):
            async with mcpp.connect(f"ws://127.0.0.1:{port}/", token="x" * 20) as pod:
                received = [encode((await anext(pod)).envelope) for _ in TEXTS]
        assert received == TEXTS
        tasks.cancel_scope.cancel()


async def test_a_connection_to_a_dead_peer_is_replaced() -> None:
    connections: list[SocketStream] = []
    later = encode(new_envelope("chat", {"text": "a new connection"}, sender="b"))

    async def fall_silent(stream: SocketStream) -> None:
        connections.append(stream)
        texts = frame(WELCOME) if len(connections) == 1 else frame(WELCOME) + frame(later)
        await serve(stream, [texts])

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    impatient = Options(silence_seconds=0.02, backoff=QUICK.backoff)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, fall_silent)
        with anyio.fail_after(10):
            url = f"ws://127.0.0.1:{port}/"
            async with mcpp.connect(url, token="x" * 20, options=impatient) as pod:
                assert (await anext(pod)).text == "a new connection"
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    "answer",
    [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 101 Switching Protocols\r\n\r\n", b"\x00" * 300],
    ids=["nothing", "ssh", "half", "zeros"],
)
async def test_something_else_at_the_address_is_unreachable(answer: bytes) -> None:
    async def speak(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            if answer:
                await stream.send(answer)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, speak)
        with anyio.fail_after(5), pytest.raises(UnreachableError):
            async with mcpp.connect(f"ws://127.0.0.1:{port}/", token="x" * 20):
                pass
        tasks.cancel_scope.cancel()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a certificate for 127.0.0.1 and its key, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost "
        "-addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    )
    try:
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    both = folder / "both.pem"
    both.write_bytes((folder / "key.pem").read_bytes() + (folder / "cert.pem").read_bytes())
    return both


async def test_a_pod_is_joined_over_tls(certificate: Path) -> None:
    pod = SocketPod(tls=certificate)
    try:
        pod.add("alice")
        trusting = ssl.create_default_context(cafile=str(certificate))
        options = Options(backoff=QUICK.backoff, ssl_context=trusting)
        async with pod.connect("alice", options=options) as alice:
            for number in range(20):
                await alice.send("chat", {"text": str(number)})
                if number == 10:
                    pod.cut("alice")
        with pytest.raises(UnreachableError, match="certificate"):
            async with pod.connect("alice"):
                pass
    finally:
        pod.close()


async def test_an_authority_of_ones_own_is_named_in_the_environment_or_the_address(
    certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = SocketPod(tls=certificate)
    try:
        pod.add("alice")
        address = Address(pod.url, pod.token("alice"), str(certificate))
        monkeypatch.setenv("MCPP_CA", str(tmp_path / "missing"))
        async with mcpp.connect(address) as alice:
            await alice.send("chat", "by the address")
        with pytest.raises(AddressError, match=r"missing: No such file"):
            async with pod.connect("alice"):
                pass
        (tmp_path / "empty").touch()
        monkeypatch.setenv("MCPP_CA", str(tmp_path / "empty"))
        with pytest.raises(AddressError, match="has no certificate of an authority"):
            async with pod.connect("alice"):
                pass
        monkeypatch.setenv("MCPP_CA", str(certificate))
        async with pod.connect("alice") as alice:
            await alice.send("chat", "by the environment")
            kept = await alice.attach(b"over TLS, too")
            assert await alice.fetch(kept) == b"over TLS, too"
    finally:
        pod.close()


def test_commands_pass_an_authority_on(certificate: Path, tmp_path: Path) -> None:
    pod = SocketPod(tls=certificate)
    try:
        pod.add("alice")
        join = ["--url", pod.url, "--token", pod.token("alice")]
        for option, code in ((["--ca", str(certificate)], 0), ([], 1)):
            assert main(["send", *join, *option, "hello"]) == code
    finally:
        pod.close()


def test_a_participant_connects_on_uvloop(sockets: SocketPod) -> None:
    uvloop = pytest.importorskip("uvloop")
    sockets.add("alice")
    by_name = sockets.url.replace("127.0.0.1", "localhost")

    async def send() -> str:
        async with mcpp.connect(by_name, token=sockets.token("alice")) as pod:
            return (await pod.send("chat", {"text": "hello"})).kind

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(send()) == "chat"
