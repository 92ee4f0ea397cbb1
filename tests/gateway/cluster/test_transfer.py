"""Moving a pod between files and a cluster, backups, and erasure, with the commands of a user."""

import asyncio
import subprocess
from pathlib import Path

import anyio
import pytest

import mcpp
from mcpp_gateway import config
from mcpp_gateway.cluster.cluster_log import new_link
from mcpp_gateway.cluster.nats_servers import NatsServers
from mcpp_gateway.cluster.streams import Streams
from mcpp_gateway.core.cluster.records import Claim, encode_record, epoch_after_loss
from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.storage.log_store import LogStoreError
from tests.gateway.cluster.test_gateways import QUICK, configure, gateways, history, url
from tests.gateway.durability.workload import MCPP
from tests.gateway.sockets import token

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


class Pods:
    """The same pod, configured with files and with a cluster."""

    def __init__(self, folder: Path, nats: NatsServers) -> None:
        self.folder = folder
        pods = [
            line
            for name in "ab"
            for line in (
                f"[pods.demo.participants.{name}]",
                f'token = "{token(name)}"',
                'capabilities = [{ kind = "chat" }]',
            )
        ]
        common = ["[gateway]", "port = 0", "[limits]", "history_messages = 10", *pods]
        (folder / "file.toml").write_text("\n".join([*common, '[log]\nkind = "file"']))
        cluster = [
            '[log]\nkind = "jetstream"\npath = "copies"',
            f'[cluster]\nservers = ["{nats.addresses[0]}"]\nreplicas = 1',
        ]
        (folder / "cluster.toml").write_text("\n".join([*common, *cluster]))

    async def run(self, name: str, count: int) -> tuple[list[str], str]:
        """Send some chats; return the ids of all that the log holds, and its epoch."""
        gateway = Gateway(config.load(self.folder / name), asyncio.get_running_loop())
        await gateway.listen()
        try:
            async with mcpp.connect(url(gateway), token=token("a"), options=QUICK) as a:
                for number in range(count):
                    await a.send("chat", f"text {number}", context="c1" if number % 2 else None)
                return await history(a), gateway.pods["demo"].epoch
        finally:
            await gateway.drain()

    async def log(self, *arguments: str, code: int = 0) -> str:
        done = await anyio.to_thread.run_sync(
            lambda: subprocess.run(
                [MCPP, "log", *arguments], cwd=self.folder, capture_output=True, text=True
            )
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr


@pytest.mark.rule("N-12", "G-51")
async def test_a_pod_moves_from_files_to_a_cluster_and_back(
    tmp_path: Path, nats: NatsServers
) -> None:
    pods = Pods(tmp_path, nats)
    chats, epoch = await pods.run("file.toml", 30)
    await pods.log("export", "data/demo", "--seal", "--output", "one.jsonl")
    with pytest.raises(LogStoreError, match="was moved"):
        await pods.run("file.toml", 1)
    await pods.log("import", "--config", "cluster.toml", "--pod", "demo", "--input", "one.jsonl")
    again = ("import", "--config", "cluster.toml", "--pod", "demo", "--input", "one.jsonl")
    assert "--replace deletes a sealed one" in await pods.log(*again, code=1)
    assert "is in use" in await pods.log(*again, "--replace", code=1)
    found, same = await pods.run("cluster.toml", 25)
    assert same == epoch
    assert found[:30] == chats
    assert len(found) == 55
    cluster = ("--config", "cluster.toml", "--pod", "demo")
    await pods.log("export", *cluster, "--seal", "--output", "two.jsonl")
    (tmp_path / "data/demo/sealed").unlink()
    (tmp_path / "data").rename(tmp_path / "old")
    await pods.log("import", "data/demo", "--input", "two.jsonl")
    assert "0 problems" in await pods.log("verify", "data/demo")
    back, same = await pods.run("file.toml", 5)
    assert same == epoch
    assert back[:55] == found
    # Into the cluster again: the copy of the stream before it shows no loss (N-14).
    await pods.log("export", "data/demo", "--seal", "--output", "three.jsonl")
    await pods.log("import", *cluster, "--replace", "--input", "three.jsonl")
    at_last, same = await pods.run("cluster.toml", 5)
    assert same == epoch
    assert at_last[:60] == back


@pytest.mark.rule("N-12", "G-16")
async def test_a_backup_is_restored_and_a_context_erased_under_a_new_epoch(
    tmp_path: Path, nats: NatsServers
) -> None:
    pods = Pods(tmp_path, nats)
    cluster = ("--config", "cluster.toml", "--pod", "demo")
    chats, epoch = await pods.run("cluster.toml", 20)
    await pods.log("export", *cluster, "--output", "backup.jsonl")  # beside running gateways, too
    more, _ = await pods.run("cluster.toml", 3)
    assert len(more) == 23
    await pods.log("export", *cluster, "--seal", "--output", "last.jsonl")
    await pods.log("import", "erasing/demo", "--new-epoch", "--input", "backup.jsonl")
    assert "10 entries erased" in await pods.log("erase", "erasing/demo", "--context", "c1")
    await pods.log("export", "erasing/demo", "--output", "erased.jsonl")
    await pods.log("import", *cluster, "--replace", "--input", "erased.jsonl")
    found, other = await pods.run("cluster.toml", 0)
    assert other != epoch
    assert found == chats[::2]
    assert b'text 1"' not in (tmp_path / "erased.jsonl").read_bytes()


@pytest.mark.rule("N-12")
async def test_an_export_beside_a_running_gateway_is_complete(
    tmp_path: Path, nats: NatsServers
) -> None:
    pods = Pods(tmp_path, nats)
    found = configure(nats)
    async with (
        gateways(found, 1) as (only,),
        mcpp.connect(url(only), token=token("a"), options=QUICK) as a,
    ):
        sent = [(await a.send("chat", number)).id for number in range(10)]
        await pods.log("export", "--config", "cluster.toml", "--pod", "demo", "--output", "x")
    text = (tmp_path / "x").read_text()
    assert all(id in text for id in sent)


@pytest.mark.rule("N-12", "N-14")
async def test_a_log_that_lost_its_end_is_exported_with_its_new_epoch(
    tmp_path: Path, nats: NatsServers
) -> None:
    pods = Pods(tmp_path, nats)
    chats, epoch = await pods.run("cluster.toml", 5)
    found = configure(nats)
    link = new_link(found.cluster, "ahead")
    await link.connect()
    try:
        streams = Streams(link, 1, found.log.retention)
        claim = Claim(9, "ahead", 0.0, "", applied=1000)
        lost = encode_record(claim)
        _, place = await streams.append("demo", [b"of another program", lost])
    finally:
        await link.close()
    cluster = ("--config", "cluster.toml", "--pod", "demo")
    await pods.log("export", *cluster, "--seal", "--output", "x.jsonl")
    await pods.log("import", *cluster, "--replace", "--input", "x.jsonl")
    same, other = await pods.run("cluster.toml", 0)
    assert same == chats
    assert other == epoch_after_loss(epoch, place, lost)


@pytest.mark.rule("A-10", "A-11")
async def test_attachments_move_with_a_pod(tmp_path: Path, nats: NatsServers) -> None:
    pods = Pods(tmp_path, nats)
    content = bytes(range(256)) * 3000  # several pieces

    async def attached(name: str, *, send: bool = False) -> bytes:
        gateway = Gateway(config.load(tmp_path / name), asyncio.get_running_loop())
        await gateway.listen()
        try:
            async with mcpp.connect(url(gateway), token=token("a"), options=QUICK) as a:
                if send:
                    plan = await a.attach(content, name="plan.png")
                    await a.send("chat", "the plan", attachments=[plan])
                [message] = await a.history({"kind": "chat"}).all()
                return await a.fetch(message.envelope.attachments[0])
        finally:
            await gateway.drain()

    assert await attached("file.toml", send=True) == content
    cluster = ("--config", "cluster.toml", "--pod", "demo")
    await pods.log("export", "data/demo", "--seal", "--output", "one.jsonl", "--blobs", "one")
    said = await pods.log("import", *cluster, "--input", "one.jsonl", "--blobs", "one")
    assert " and 1 blob imported" in said
    assert await attached("cluster.toml") == content
    said = await pods.log("export", *cluster, "--output", "bare.jsonl")
    assert "1 blob that the log names is not exported" in said
    await pods.log("export", *cluster, "--seal", "--output", "two.jsonl", "--blobs", "two")
    names = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("one", "two")]
    assert names[0] == names[1]
    (tmp_path / "data").rename(tmp_path / "old")
    await pods.log("import", "data/demo", "--input", "two.jsonl", "--blobs", "two")
    assert await attached("file.toml") == content
