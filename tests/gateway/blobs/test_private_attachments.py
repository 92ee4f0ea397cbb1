"""Private attachments: content that only the addressees of an envelope may fetch."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from mcpp import filters
from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.core.attachments import blob_table
from mcpp_gateway.core.attachments.blob_table import CALL_SECONDS
from mcpp_gateway.core.history.erasing import Erasure
from mcpp_gateway.core.pod import ParticipantSettings
from mcpp_gateway.core.records import Batch, decode_batch, decode_state, encode_batch, encode_state
from mcpp_gateway.log_tools.commands import fork as fork_command
from mcpp_gateway.log_tools.commands import main
from mcpp_gateway.log_tools.export import export, import_lines
from mcpp_gateway.log_tools.exported_blobs import import_blobs
from tests.gateway.blobs.test_sockets_blobs import (
    HASH,
    PICTURE,
    files,
    named,
    status_of,
    until,
    upload,
)
from tests.gateway.cluster.simulation import World
from tests.gateway.cluster.test_core import follower, settled_world
from tests.gateway.durability.test_log_store import DurableGateway
from tests.gateway.harness import PodHarness, text
from tests.gateway.sockets import config_text, joined, receive_until, running

pytestmark = pytest.mark.anyio

BLOB = "a" * 64
PRIVATE: dict[str, Any] = {"hash": BLOB, "size": 5, "media_type": "a/b", "private": True}
PUBLIC = PRIVATE | {"private": False}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def readers(harness: PodHarness) -> list[str]:
    pod = harness.pod
    return [
        name
        for name in ("alice", "bob", "carol", "dora")
        if pod.blobs.readable_size(pod.members.rights(name), BLOB, pod.journal.committed)
    ]


def harness_with_blob() -> PodHarness:
    harness = PodHarness("alice", "bob", "carol", "dora")
    harness.pod.blobs.add("alice", BLOB, 5, harness.now)
    return harness


@pytest.mark.rule("A-13")
def test_only_addressees_may_read_a_private_attachment_whatever_they_hear() -> None:
    harness = harness_with_blob()
    capabilities, nothing = Capabilities([{"kind": "*"}]), filters.parse({"kind": "nothing"})
    settings = [ParticipantSettings(name, capabilities) for name in ("alice", "carol", "dora")]
    settings.append(ParticipantSettings("bob", capabilities, False, nothing))
    harness.perform(harness.pod.reconfigure(settings, harness.now))
    alice, carol = harness.join("alice"), harness.join("carol")
    assert readers(harness) == ["alice"]
    harness.send(alice, "chat", to=["bob"], attachments=[PRIVATE])
    assert readers(harness) == ["alice", "bob"]
    # Who has heard the hash may not name it.
    assert BLOB in carol.texts[-1].decode()
    harness.send(carol, "chat", to=["dora"], attachments=[PRIVATE])
    assert carol.errors == ["no_attachment"]
    harness.send(alice, "chat", to=[], attachments=[PRIVATE])
    assert readers(harness) == ["alice", "bob"]


@pytest.mark.rule("A-13")
def test_an_addressee_may_pass_a_private_attachment_on() -> None:
    harness = harness_with_blob()
    alice, bob = harness.join("alice"), harness.join("bob")
    harness.send(alice, "chat", to=["bob"], attachments=[PRIVATE])
    harness.send(bob, "chat", to=["carol"], attachments=[PRIVATE])
    assert readers(harness) == ["alice", "bob", "carol"]
    harness.send(bob, "chat", to=["alice"], attachments=[PRIVATE, PUBLIC])
    assert readers(harness) == ["alice", "bob", "carol", "dora"]


RESPONSE = "mcp/response:tools/call:x"


def expire(harness: PodHarness, seconds: float) -> list[str]:
    """Let time pass, and return the blobs that are no longer kept."""
    harness.now += seconds
    return harness.pod.blobs.expire(harness.pod.journal.start, harness.now)


@pytest.mark.rule("A-15")
@pytest.mark.parametrize("kind", ["mcp/request:tools/call:x", RESPONSE])
def test_what_is_private_to_a_call_is_kept_for_minutes(kind: str) -> None:
    harness = harness_with_blob()
    alice = harness.join("alice")
    harness.send(alice, kind, to=["bob"], attachments=[PRIVATE])
    assert expire(harness, CALL_SECONDS - 1) == []
    assert readers(harness) == ["alice", "bob"]
    state = harness.pod.snapshot(term=1, index=1, boot="", now=harness.now)
    harness.pod.blobs.restore(decode_state(encode_state(state)))
    assert readers(harness) == ["alice", "bob"]
    assert expire(harness, 1) == [BLOB]
    assert readers(harness) == []
    assert (harness.pod.blobs.used_bytes, harness.pod.blobs._used) == (0, {})
    # What is uploaded again is another's, and the old envelope permits nothing.
    harness.pod.blobs.add("carol", BLOB, 5, harness.now)
    assert readers(harness) == ["carol"]


@pytest.mark.rule("A-15")
def test_an_addressee_cannot_keep_what_is_private_to_a_call() -> None:
    harness = harness_with_blob()
    alice, bob = harness.join("alice"), harness.join("bob")
    harness.send(alice, RESPONSE, to=["bob"], attachments=[PRIVATE])
    for kind, attachment in (("chat", PUBLIC), ("chat", PRIVATE), (RESPONSE, PRIVATE)):
        harness.send(bob, kind, to=["carol"], attachments=[attachment])
    assert bob.errors == ["no_attachment"] * 3
    assert expire(harness, CALL_SECONDS) == [BLOB]


@pytest.mark.rule("A-15", "A-09")
def test_a_call_ends_neither_the_upload_of_another_nor_what_other_envelopes_keep() -> None:
    harness = harness_with_blob()
    harness.pod.blobs.add("carol", BLOB, 5, harness.now)
    alice = harness.join("alice")
    harness.send(alice, RESPONSE, to=["bob"], attachments=[PRIVATE])
    assert expire(harness, CALL_SECONDS) == []
    assert readers(harness) == ["alice", "carol"]
    harness.send(alice, "chat", to=["dora"], attachments=[PRIVATE])
    harness.send(alice, RESPONSE, to=["bob"], attachments=[PRIVATE])
    assert readers(harness) == ["alice", "bob", "carol", "dora"]
    assert expire(harness, 100_000) == []
    assert readers(harness) == ["alice", "carol", "dora"]


@pytest.mark.rule("A-13")
def test_records_and_states_keep_what_is_private() -> None:
    harness = harness_with_blob()
    alice = harness.join("alice")
    harness.send(alice, "chat", to=["bob"], attachments=[PRIVATE])
    journal = harness.pod.journal
    [entry] = [each for each in journal.read(0, 100) if each.attachments]
    assert (entry.attachments, entry.private, entry.public_attachments) == ((BLOB,), (BLOB,), ())
    batch = Batch(1, 0, 0, entry.time, [entry])
    assert decode_batch(encode_batch(batch)).entries == [entry]
    state = harness.pod.snapshot(term=1, index=1, boot="", now=harness.now)
    assert decode_state(encode_state(state)).named_privately == state.named_privately
    assert [each.hash for each in state.named_privately] == [BLOB]
    assert state.named == ()
    erased = Erasure(participant="alice").without_names(state, set(), {BLOB})
    assert erased.named_privately == ()


@pytest.mark.rule("A-13")
async def test_history_and_replay_grant_nothing_over_sockets() -> None:
    async with running(config_text()) as gateway, joined(gateway, "alice") as alice:
        await upload(gateway, PICTURE)
        attachments = [
            {"hash": HASH, "size": len(PICTURE), "media_type": "image/png", "private": True}
        ]
        await alice.send(named("m0", "alice", to=["bob"], attachments=attachments))
        await receive_until(alice, "m0")
        async with joined(gateway, "carol", query={"last": "10"}) as carol:
            replayed = (await receive_until(carol, "m0"))[-1]
            assert replayed["attachments"] == attachments
            await carol.send(text("q", "carol", "pod/history", {"limit": 10}).decode())
            answer = (await receive_until(carol, "q"))[-1]
            assert (answer["kind"], HASH in json.dumps(answer)) == ("system/history", True)
            statuses = [await status_of(gateway, name) for name in ("alice", "bob", "carol")]
            assert statuses == [200, 200, 404]
            await carol.send(named("m1", "carol", to=["carol"], attachments=attachments))
            refusal = (await receive_until(carol, "m1"))[-1]
            assert refusal["payload"]["error"] == "no_attachment"
            assert await status_of(gateway, "carol") == 404


@pytest.mark.rule("A-15")
async def test_private_answers_leave_their_room_to_the_next_over_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_table, "CALL_SECONDS", 0.0)
    durable = DurableGateway(tmp_path / "data", max_blob_bytes_per_participant=40_000)
    async with durable.run() as gateway, joined(gateway, "alice") as alice:
        for number in range(4):
            content = bytes([number]) * 16_384
            hash = sha256(content).hexdigest()
            assert (await upload(gateway, content))[0] == 201
            attachments = [{"hash": hash, "size": 16_384, "media_type": "a/b", "private": True}]
            said = named(f"m{number}", "alice", kind=RESPONSE, to=["bob"], attachments=attachments)
            await alice.send(said)
            await receive_until(alice, f"m{number}")
            await until(lambda: not files(gateway))
            assert await status_of(gateway, "bob", hash) == 404


@pytest.mark.rule("A-13", "A-10")
async def test_restart_fork_import_and_erasure_keep_it_private(tmp_path: Path) -> None:
    durable = DurableGateway(tmp_path / "data", history_messages=5)
    secret = sha256(b"secret").hexdigest()
    private = [{"hash": secret, "size": 6, "media_type": "a/b", "private": True}]
    async with durable.run() as gateway, joined(gateway, "alice") as alice:
        await upload(gateway, b"secret")
        await alice.send(named("m0", "alice", to=["bob"], attachments=private))
        await receive_until(alice, "m0")
    source = tmp_path / "data" / "demo"
    assert fork_command([str(source), str(tmp_path / "fork" / "demo"), "--at", "m0"]) == 0
    import_lines(export(source), tmp_path / "import" / "demo", None)
    import_blobs(source / "blobs", tmp_path / "import" / "demo", {secret})
    for folder in ("data", "data", "fork", "import"):
        async with DurableGateway(tmp_path / folder).run() as gateway:
            statuses = [await status_of(gateway, name, secret) for name in ("bob", "carol")]
            assert statuses == [200, 404], folder
    async with durable.run() as gateway, joined(gateway, "bob") as bob:
        public = [private[0] | {"private": False}]
        await bob.send(named("m1", "bob", attachments=public))
        await receive_until(bob, "m1")
        assert await status_of(gateway, "carol", secret) == 200
    assert main(["erase", str(source), "--participant", "bob"]) == 0
    async with durable.run() as gateway:
        statuses = [await status_of(gateway, name, secret) for name in ("bob", "carol")]
        assert statuses == [200, 404]
    assert main(["erase", str(source), "--participant", "alice"]) == 0
    assert not [path for path in (source / "blobs").iterdir() if path.name == secret]


@pytest.mark.rule("A-13", "A-11")
def test_every_gateway_of_a_cluster_decides_by_the_log() -> None:
    world: World = settled_world()
    for gateway in world.gateways.values():
        gateway.pod.blobs.add("a", BLOB, 5, world.now)
    sender = world.clients["a"]
    sender.connect(follower(world))
    world.run(2.0)
    said = text("private", "a", to=["b"], attachments=[PRIVATE])
    sender.unsettled.append(("private", said))
    sender._transmit("private", said)
    world.run(2.0)
    assert "private" in sender.seen
    for gateway in world.gateways.values():
        pod = gateway.pod
        readable = [
            name
            for name in ("a", "b", "c")
            if pod.blobs.readable_size(pod.members.rights(name), BLOB, pod.journal.committed)
        ]
        assert readable == ["a", "b"]
