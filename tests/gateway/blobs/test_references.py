"""Content by reference, from participant to participant: in memory and over sockets."""

from pathlib import Path

import pytest

import mcpp
from mcpp.errors import AttachmentError, EncodeError, Refused
from mcpp.testing.pod import MemoryPod
from tests.gateway.harness import PodHarness
from tests.gateway.sockets import config_text, running, token

pytestmark = pytest.mark.anyio

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(500_000)


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@pytest.mark.rule("P-73")
async def test_a_file_travels_by_reference(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(PICTURE)
    pod = MemoryPod()
    async with pod.connect("alice") as alice, pod.connect("bob") as bob:
        reference = await alice.attach(path)
        assert (reference.size, reference.media_type) == (len(PICTURE), "image/png")
        assert (reference.name, str(reference)) == ("photo.png", "photo.png (image/png, 500.0 kB)")
        with pytest.raises(AttachmentError) as unknown:
            await bob.fetch(reference)
        assert unknown.value.status == 404
        await alice.send("chat", "look", attachments=[reference])
        message = await anext(bob)
        assert message.attachments == (reference,)
        assert await message.fetch(reference) == PICTURE
        there = await message.fetch(reference, to=tmp_path / "copy.png")
        assert there.read_bytes() == PICTURE
        assert names(tmp_path) == ["copy.png", "photo.png"]
        await message.reply("thanks", attachments=message.attachments)
        while not (answer := await anext(alice)).attachments:
            pass  # presence
        assert answer.attachments == (reference,)


@pytest.mark.rule("P-73")
async def test_what_is_not_what_the_reference_names_is_not_returned(tmp_path: Path) -> None:
    pod = MemoryPod()
    async with pod.connect("alice") as alice:
        reference = await alice.attach(PICTURE)
        assert reference.media_type == "application/octet-stream"
        kept = pod.gateway._blobs  # type: ignore[attr-defined]
        for forged in (PICTURE[:-1] + b"x", PICTURE[:-1], PICTURE + b"x", b""):
            kept[reference.hash] = forged
            with pytest.raises(AttachmentError):
                await alice.fetch(reference)
            with pytest.raises(AttachmentError):
                await alice.fetch(reference, to=tmp_path / "copy")
        assert names(tmp_path) == []
        kept[reference.hash] = PICTURE
        with pytest.raises(AttachmentError, match="max_bytes"):
            await alice.fetch(reference, max_bytes=1000)


async def test_mistakes_are_named() -> None:
    pod = MemoryPod(limits={"max_blob_bytes": 10})
    async with pod.connect("alice") as alice:
        with pytest.raises(AttachmentError) as large:
            await alice.attach(bytes(11))
        assert large.value.status == 413
        with pytest.raises(AttachmentError):
            await alice.attach("/nowhere/at/all")
        with pytest.raises(EncodeError):
            await alice.attach(b"x", name="../x")
        with pytest.raises(EncodeError):
            await alice.attach(b"x", media_type="png")
        stolen = mcpp.Attachment("0" * 64, 5, "image/png")
        with pytest.raises(Refused) as refused:
            await alice.send("chat", "mine", attachments=[stolen])
        assert refused.value.code == "no_attachment"
        with pytest.raises(EncodeError):
            await alice.send("chat", "mine", attachments=["x"])  # type: ignore[list-item]


@pytest.mark.rule("P-73")
async def test_references_work_over_sockets(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    path.write_bytes(PICTURE * 3)
    async with running(config_text(max_blob_bytes=2_000_000)) as gateway:
        url = f"ws://localhost:{gateway.port}/ws?pod=demo"
        async with (
            mcpp.connect(url, token=token("alice")) as alice,
            mcpp.connect(url, token=token("bob")) as bob,
        ):
            reference = await alice.attach(path)
            await alice.send("chat", "look", attachments=[reference])
            while not (message := await anext(bob)).attachments:
                pass
            assert await message.fetch(reference) == PICTURE * 3
            there = await message.fetch(reference, to=tmp_path / "copy")
            assert there.read_bytes() == PICTURE * 3
            empty = await alice.attach(b"", name="empty.txt")
            assert await alice.fetch(empty) == b""
            with pytest.raises(AttachmentError) as large:
                await alice.attach(bytes(2_000_001))
            assert large.value.status == 413


@pytest.mark.rule("A-13", "E-34")
async def test_private_content_is_for_the_addressees() -> None:
    pod = MemoryPod()
    async with (
        pod.connect("alice") as alice,
        pod.connect("bob") as bob,
        pod.connect("carol") as carol,
    ):
        reference = await alice.attach(PICTURE, name="plan.png", private=True)
        with pytest.raises(EncodeError, match="no `to`"):
            await alice.send("chat", "for nobody", attachments=[reference])
        await alice.send("chat", "for you", to="bob", attachments=[reference])
        for each in (bob, carol):
            while not (message := await anext(each)).attachments:
                pass  # presence
            assert str(message.attachments[0]) == "plan.png (image/png, 500.0 kB, private)"
        assert await bob.fetch(reference) == PICTURE
        with pytest.raises(AttachmentError) as unknown:
            await carol.fetch(reference)
        assert unknown.value.status == 404


@pytest.mark.rule("A-08")
def test_a_live_part_grants_nothing() -> None:
    harness = PodHarness("alice", "bob")
    alice, bob = harness.join("alice"), harness.join("bob")
    blob = "a" * 64
    harness.pod.blobs.add("alice", blob, 5, harness.now)
    attachment = {"hash": blob, "size": 5, "media_type": "a/b"}
    harness.send(alice, "live/text", payload={"text": "x"}, attachments=[attachment])
    assert bob.kinds[-1] == "live/text"
    rights = harness.pod.members.rights("bob")
    assert harness.pod.blobs.readable_size(rights, blob, harness.pod.journal.committed) is None
