"""A fork begins with the original's entries, and is another log."""

from pathlib import Path

import pytest

from mcpp_gateway.core.records import LogEntry, decode_batch
from mcpp_gateway.log_tools.commands import fork, main
from mcpp_gateway.log_tools.info import inspect
from mcpp_gateway.log_tools.verify import Verification
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.segment_log import SegmentLog
from tests.gateway.sockets import chat, config_text, id_of, joined, receive, receive_until, running
from tests.gateway.storage.sample_log import OPTIONS, write_sample


@pytest.fixture
def original(tmp_path: Path) -> Path:
    write_sample(tmp_path / "pod", stop=True)
    return tmp_path / "pod"


def entries(folder: Path) -> list[LogEntry]:
    log = SegmentLog(OsDisk(folder), OPTIONS)
    log.recover()
    return [entry for record in log.read(0) for entry in decode_batch(record.payload).entries]


@pytest.mark.rule("H-11")
def test_a_fork_at_any_envelope_is_a_correct_log_with_the_same_beginning(original: Path) -> None:
    whole = entries(original)
    files = {path.name: path.read_bytes() for path in original.iterdir()}
    for at, last in enumerate(whole):
        copy = original.parent / f"fork-{at}"
        assert fork([str(original), "--at", last.id, copy.name]) == 0
        assert [each.text for each in entries(copy)] == [each.text for each in whole[: at + 1]]
        assert Verification(copy).run() == []
        found = inspect(copy)
        assert found.epoch != inspect(original).epoch
        assert found.origin is not None
        assert (found.origin["pod"], found.origin["position"]) == ("pod", at)
        assert (found.origin["id"], found.origin["epoch"]) == (last.id, inspect(original).epoch)
        assert found.stopped
    assert {path.name: path.read_bytes() for path in original.iterdir()} == files


@pytest.mark.rule("H-11")
def test_the_origin_is_shown(original: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fork([str(original), "--at", "m3", "new"]) == 0
    assert main(["info", str(original.parent / "new")]) == 0
    assert "origin    pod pod, epoch " in capsys.readouterr().out


def test_a_fork_needs_an_envelope_of_the_log_and_a_new_folder(
    original: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fork([str(original), "--at", "unknown", "new"]) == 1
    assert "mcpp fork: the log holds no envelope 'unknown'" in capsys.readouterr().err
    assert fork([str(original), "--at", "m3", "pod"]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert sorted(each.name for each in original.parent.iterdir()) == ["pod"]


@pytest.mark.rule("H-11", "G-10")
@pytest.mark.anyio
async def test_a_gateway_runs_on_a_fork_and_keeps_its_origin(original: Path) -> None:
    assert fork([str(original), "--at", "m3", "demo"]) == 0
    log = f'\n[log]\nkind = "file"\npath = "{original.parent}"\n'
    for _ in range(2):
        async with running(config_text() + log) as gateway, joined(gateway, "alice") as client:
            pod = (await receive(client))["payload"]["pod"]
            assert pod["origin"]["id"] == "m3"
            assert pod["epoch"] != pod["origin"]["epoch"]
    assert Verification(original.parent / "demo").run() == []


@pytest.mark.rule("H-11", "C-10")
@pytest.mark.anyio
async def test_contexts_that_were_open_at_the_point_are_open_in_the_fork(original: Path) -> None:
    # The original is weeks old, and its contexts expired a minute later.
    assert fork([str(original), "--at", "m2", "demo"]) == 0
    log = f'\n[log]\nkind = "file"\npath = "{original.parent}"\n'
    async with running(config_text() + log) as gateway, joined(gateway, "carol") as client:
        await receive(client)  # nothing is said
    config = config_text(context_idle_seconds=3600) + log
    async with running(config) as gateway, joined(gateway, "alice") as client:
        contexts = (await receive(client))["payload"]["contexts"]
        assert {each["id"] for each in contexts} == {"task", "step"}
        gateway.hub.perform_all(gateway.pods["demo"].tick(gateway.hub.clock()))
        said = chat("alice", context="step")
        await client.send(said)
        arrived = await receive_until(client, id_of(said))
        assert not [each for each in arrived if each["kind"] == "system/context"]
    assert not [each for each in entries(original.parent / "demo") if "context" in each.kind]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
