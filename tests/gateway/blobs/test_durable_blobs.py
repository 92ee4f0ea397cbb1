"""Blobs beside a log in files: restarts, kill -9, a full disk, erasure, backup, fork, export."""

import asyncio
import json
import signal
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest

import mcpp
from mcpp.errors import AttachmentError
from mcpp_gateway.log_tools.commands import fork as fork_command
from mcpp_gateway.log_tools.commands import main
from tests.gateway.blobs.test_sockets_blobs import HASH, PICTURE, named, request, status_of, upload
from tests.gateway.durability.conftest import small_disk
from tests.gateway.durability.test_full_disk import fill
from tests.gateway.durability.test_log_store import DurableGateway, say
from tests.gateway.durability.workload import QUICK, DurableProcess
from tests.gateway.sockets import http, joined, receive_until, token

__all__ = ["small_disk"]
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def name_it(durable: DurableGateway, id: str, sender: str, hash: str = HASH) -> None:
    async with durable.run() as gateway, joined(gateway, sender) as client:
        await upload(gateway, PICTURE, sender)
        await client.send(named(id, sender, hash=hash))
        await receive_until(client, id)


@pytest.mark.rule("A-03", "A-06")
async def test_blobs_uploaders_and_permissions_survive_restarts(tmp_path: Path) -> None:
    durable = DurableGateway(tmp_path, history_messages=5)
    async with durable.run() as gateway:
        assert (await upload(gateway, PICTURE))[0] == 201
    async with durable.run() as gateway:
        assert await status_of(gateway, "bob") == 404
        async with joined(gateway, "alice") as alice:
            await alice.send(named("given", "alice"))
            await receive_until(alice, "given")
            for number in range(20):  # the window forgets it, the log does not
                await say(alice, f"m{number}")
    for _ in range(2):
        async with durable.run() as gateway:
            assert await status_of(gateway, "bob") == 200


@pytest.mark.rule("A-03")
async def test_a_kill_keeps_what_was_acknowledged_and_nothing_else(tmp_path: Path) -> None:
    gateway = DurableProcess(tmp_path, 1)
    acknowledged: list[mcpp.Attachment] = []
    try:
        for round in range(2):
            gateway.start()

            async def attach(number: int, round: int = round) -> None:
                content = f"{round} {number} ".encode() * 20_000
                async with mcpp.connect(gateway.url, token=token("p0"), own=True) as pod:
                    while True:
                        content += b"x"
                        acknowledged.append(await pod.attach(content))

            task = asyncio.create_task(attach(0))
            async with asyncio.timeout(30):
                while len(acknowledged) < 4 * (round + 1):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            gateway.end(signal.SIGKILL)
            task.cancel()
            with suppress(asyncio.CancelledError, AttachmentError):
                await task
        gateway.start()
        async with mcpp.connect(gateway.url, token=token("p0")) as pod:
            for each in acknowledged:
                assert len(await pod.fetch(each)) == each.size
        folder = tmp_path / "data" / "demo" / "blobs"
        assert not list(folder.glob(".*"))
        for path in folder.iterdir():
            if "." not in path.name:
                assert sha256(path.read_bytes()).hexdigest() == path.name
    finally:
        gateway.close()


@pytest.mark.rule("A-16")
async def test_transfers_go_on_after_the_gateway_was_away(tmp_path: Path) -> None:
    gateway, broken = DurableProcess(tmp_path, 1), asyncio.Queue[str]()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer as a gateway that stops, or end as one that was killed."""
        method, path, _ = (await reader.readuntil(b"\r\n\r\n")).decode().split(" ", 2)
        if path.startswith("/blob/"):
            if method == "PUT":
                writer.write(b"HTTP/1.1 503 \r\nContent-Length: 0\r\n\r\n")
            broken.put_nowait(method)
        writer.close()

    try:
        gateway.start()
        async with (
            asyncio.timeout(30),
            mcpp.connect(gateway.url, token=token("p0"), options=QUICK) as pod,
        ):
            known = await pod.attach(PICTURE)
            gateway.end(signal.SIGTERM)
            async with await asyncio.start_server(refuse, "127.0.0.1", gateway.port):
                attaching = asyncio.create_task(pod.attach(PICTURE + PICTURE))
                fetching = asyncio.create_task(pod.fetch(known))
                writing = asyncio.create_task(pod.fetch(known, to=tmp_path / "picture"))
                seen = [await broken.get() for _ in range(3)]
                assert sorted(set(seen)) == ["GET", "PUT"]
            gateway.start()
            assert await fetching == PICTURE
            assert (await writing).read_bytes() == PICTURE
            assert await pod.fetch(await attaching) == PICTURE + PICTURE
    finally:
        gateway.close()


@pytest.mark.rule("A-02")
async def test_a_full_disk_refuses_uploads_and_goes_on(small_disk: Path) -> None:
    durable = DurableGateway(small_disk)
    async with durable.run() as gateway:
        assert (await upload(gateway, PICTURE))[0] == 201
        ballast = fill(small_disk)
        status, _, body = await http(gateway, request("POST", "/blob", body=bytes(400_000)))
        assert (status, b"no space" in body) == (507, True)
        assert await status_of(gateway, "alice") == 200
        ballast.unlink()
        assert (await upload(gateway, bytes(400_000)))[0] == 201
        names = {path.name[:1] for path in (small_disk / "demo" / "blobs").iterdir()}
        assert "." not in names


@pytest.mark.rule("A-10")
async def test_erasing_deletes_what_only_erased_envelopes_named(tmp_path: Path) -> None:
    durable = DurableGateway(tmp_path)
    other = sha256(b"shared").hexdigest()
    async with (
        durable.run() as gateway,
        joined(gateway, "alice") as alice,
        joined(gateway, "bob") as bob,
    ):
        await upload(gateway, PICTURE)
        await upload(gateway, b"shared")
        await alice.send(named("a0", "alice"))
        await alice.send(named("a1", "alice", hash=other, size=6))
        await receive_until(bob, "a1")
        await bob.send(named("b0", "bob", hash=other, size=6))
        await receive_until(alice, "b0")
    assert main(["erase", str(tmp_path / "demo"), "--participant", "alice"]) == 0
    names = sorted(path.name for path in (tmp_path / "demo" / "blobs").iterdir())
    assert names == [other, f"{other}.~"]
    async with durable.run() as gateway:
        assert await status_of(gateway, "bob") == 404
        assert await status_of(gateway, "bob", other) == 200
        assert await status_of(gateway, "carol", other) == 200


@pytest.mark.rule("A-10")
async def test_erasing_a_participant_deletes_its_uploads_that_no_envelope_names(
    tmp_path: Path,
) -> None:
    durable = DurableGateway(tmp_path)
    shared = sha256(b"shared").hexdigest()
    async with durable.run() as gateway:
        await upload(gateway, PICTURE)
        for name in ("alice", "bob"):
            await upload(gateway, b"shared", name)
    blobs = tmp_path / "demo" / "blobs"
    options = ["--participant", "alice"]
    assert main(["erase", str(tmp_path / "demo"), *options, "--before", "1h ago"]) == 0
    assert (blobs / f"{HASH}.alice").exists()  # uploaded later
    assert main(["erase", str(tmp_path / "demo"), *options]) == 0
    names = {path.name for path in blobs.iterdir()}
    assert names == {shared, f"{shared}.~", f"{shared}.bob"}


@pytest.mark.rule("A-10", "L-11")
async def test_an_export_takes_blobs_along_into_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    durable = DurableGateway(tmp_path / "data")
    await name_it(durable, "m0", "alice")
    async with durable.run() as gateway:
        await upload(gateway, b"named by nothing")
    source, lines, folder = tmp_path / "data" / "demo", tmp_path / "lines", tmp_path / "content"
    assert main(["export", str(source), "--output", str(lines)]) == 0
    assert "1 blob that the log names is not exported; --blobs" in capsys.readouterr().err
    lines.unlink()
    assert main(["export", str(source), "--output", str(lines), "--blobs", str(folder)]) == 0
    assert capsys.readouterr().err == ""
    assert sorted(path.name for path in folder.iterdir()) == [HASH, f"{HASH}.alice"]
    (folder / f"{HASH}.alice").unlink()  # an uploader is not needed
    (folder / "notes.txt").touch()

    def imported(name: str, *options: str) -> int:
        return main(["import", str(tmp_path / name / "demo"), "--input", str(lines), *options])

    assert imported("bare") == 0
    assert "1 blob that the log names is not imported; --blobs" in capsys.readouterr().err
    assert imported("copy", "--blobs", str(folder)) == 0
    said = capsys.readouterr()
    assert (" and 1 blob imported" in said.out, said.err) == (True, "")
    for _ in range(2):
        async with DurableGateway(tmp_path / "copy").run() as gateway:
            assert await status_of(gateway, "bob") == 200
    (folder / HASH).write_bytes(b"something else")
    assert imported("false", "--blobs", str(folder)) == 1
    assert "is not the content that its name says" in capsys.readouterr().err
    assert not (tmp_path / "false" / "demo").exists()
    assert imported("none", "--blobs", str(tmp_path / "absent")) == 1


@pytest.mark.rule("A-10")
async def test_backups_and_forks_contain_blobs_and_exports_name_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    durable = DurableGateway(tmp_path / "data")
    await name_it(durable, "m0", "alice")
    async with durable.run() as gateway, joined(gateway, "alice") as alice:
        await upload(gateway, b"later")
        await alice.send(named("m1", "alice", hash=sha256(b"later").hexdigest(), size=5))
        await receive_until(alice, "m1")
    source = tmp_path / "data" / "demo"
    assert main(["backup", str(source), str(tmp_path / "backup" / "demo")]) == 0
    assert "2 blobs" in capsys.readouterr().out
    copy = tmp_path / "fork" / "demo"
    assert fork_command([str(source), str(copy), "--at", "m0"]) == 0
    blobs = [path.name for path in (copy / "blobs").iterdir()]
    assert sorted(blobs) == sorted([HASH, f"{HASH}.alice"])
    for folder in ("backup", "fork"):
        async with DurableGateway(tmp_path / folder).run() as gateway:
            assert await status_of(gateway, "bob") == 200
    capsys.readouterr()
    assert main(["export", str(source)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert next(line["attachments"] for line in lines if "attachments" in line) == [HASH]
    assert main(["verify", str(source)]) == 0
