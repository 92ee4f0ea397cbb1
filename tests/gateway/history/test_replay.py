"""A replay: recorded entries arrive at the recorded pace, and nothing can be sent."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.replay.pod import ReplayPod
from mcpp_gateway.log_tools.export import export
from mcpp_gateway.log_tools.reader import LogToolError
from mcpp_gateway.replay.commands import main, replay_config
from mcpp_gateway.replay.recording import LogRecording, open_recording
from mcpp_gateway.replay.server import ReplayGateway
from tests.gateway.harness import FREE, HarnessClient, PodHarness, text
from tests.gateway.sockets import receive_until
from tests.gateway.storage.sample_log import write_sample
from tests.gateway.test_process import joined, started


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sample(tmp_path / "pod", stop=True)
    return tmp_path / "pod"


class Replaying:
    """A replay without sockets, with a clock that the test moves."""

    def __init__(self, recording: LogRecording, speed: float = 1.0) -> None:
        self.harness = PodHarness("viewer", "other", multiple=("viewer",))
        settings = list(self.harness.pod.members._settings.values())
        self.pod = ReplayPod(
            "pod",
            settings,
            PodLimits(**FREE),
            new_id=self.harness.pod._new_id,
            recording=recording,
            speed=speed,
        )
        self.harness.pod = self.pod

    def join(self, id: str = "viewer", **options: Any) -> HarnessClient:
        return self.harness.join(id, **options)

    def wait(self, seconds: float) -> None:
        self.harness.now += seconds
        self.harness.perform(self.pod.advance(self.harness.now))

    def control(self, client: HarnessClient, id: str = "c", **payload: Any) -> Any:
        self.harness.send(client, "pod/replay", id=id, payload=payload)
        found = [each for each in client.seen if each.get("correlation_id") == id]
        return found[-1]["payload"]


@pytest.fixture
def replaying(folder: Path) -> Any:
    with open_recording(folder, None, None, None) as recording:
        yield Replaying(recording)


def recorded(client: HarnessClient) -> list[str]:
    return [each["id"] for each in client.seen if each["kind"] == "chat"]


@pytest.mark.rule("H-12")
def test_entries_arrive_at_the_recorded_pace_times_the_speed(replaying: Replaying) -> None:
    viewer = replaying.join()
    status = viewer.welcome["pod"]["replay"]
    assert (status["state"], status["position"], status["start"]) == ("playing", 0, 0)
    replaying.wait(0.0)
    assert recorded(viewer) == []
    assert viewer.kinds.count("system/presence") == 2, "as they were recorded at the beginning"
    replaying.wait(1.4)
    assert recorded(viewer) == []
    replaying.wait(0.1)
    assert recorded(viewer) == ["m0", "m1", "m2"]
    replaying.control(viewer, speed=10)
    replaying.wait(0.024)
    assert len(recorded(viewer)) == 3
    replaying.wait(0.002)
    assert recorded(viewer) == ["m0", "m1", "m2", "m3", "m4"]
    replaying.wait(20.0)
    assert recorded(viewer)[-1] == "m6"
    assert viewer.last["kind"] == "system/replay"
    assert viewer.last["payload"]["state"] == "ended"
    assert "correlation_id" not in viewer.last


@pytest.mark.rule("H-12")
def test_the_texts_are_the_recorded_ones_and_late_viewers_resume(replaying: Replaying) -> None:
    viewer = replaying.join()
    replaying.wait(1000.0)
    originals = [entry.text for entry in replaying.pod._recording.read(0, 1000)]
    assert [each for each in viewer.texts if each in originals] == originals
    late = replaying.join(after="m3")
    assert late.welcome["resumed"]
    assert recorded(late) == ["m4", "m5", "m6"]


@pytest.mark.rule("H-12")
def test_nothing_can_be_sent(replaying: Replaying) -> None:
    viewer, other = replaying.join(), replaying.join("other")
    before = len(other.texts)
    replaying.harness.send(viewer, id="mine")
    assert viewer.errors == ["read_only"]
    replaying.harness.send(viewer, "system/context", id="forged")
    assert viewer.errors[-1] == "reserved_kind"
    replaying.harness.send(viewer, id="foreign", sender="other")
    assert viewer.errors[-1] == "sender_mismatch"
    assert len(other.texts) == before, "no presence of viewers, no echo"


@pytest.mark.rule("H-13")
def test_pausing_stops_the_arrival_for_all(replaying: Replaying) -> None:
    viewer, other = replaying.join(), replaying.join("other")
    assert replaying.control(viewer, state="paused")["state"] == "paused"
    assert other.last["kind"] == "system/replay"
    replaying.wait(1000.0)
    assert recorded(viewer) == []
    replaying.control(viewer, "d", state="playing")
    replaying.wait(1.5)
    assert recorded(viewer) == ["m0", "m1", "m2"]
    told = len(other.texts)
    assert replaying.control(viewer, "e")["position"] == 5
    assert len(other.texts) == told, "asking changes nothing"


@pytest.mark.rule("H-13")
def test_a_seek_forward_lets_everything_in_between_arrive(replaying: Replaying) -> None:
    viewer = replaying.join()
    status = replaying.control(viewer, position="m5")
    assert recorded(viewer) == ["m0", "m1", "m2", "m3", "m4"]
    assert status["position"] == replaying.pod._recording.find("m5")
    assert viewer.closed is None
    replaying.wait(0.0)
    assert recorded(viewer)[-1] == "m5"


@pytest.mark.rule("H-13")
def test_a_seek_back_begins_a_new_epoch(replaying: Replaying) -> None:
    viewer = replaying.join()
    epoch = viewer.welcome["pod"]["epoch"]
    replaying.wait(1000.0)
    status = replaying.control(viewer, position="m1", state="paused")
    assert (status["state"], viewer.closed) == ("paused", 4002)
    again = replaying.join(after="m6", last=100)
    assert again.welcome["pod"]["epoch"] != epoch
    assert not again.welcome["resumed"]
    assert recorded(again) == ["m0"]
    assert again.welcome["contexts"] == []
    replaying.control(again, position="m3")
    assert recorded(again) == ["m0", "m1", "m2"]
    third = replaying.join()
    assert {each["id"] for each in third.welcome["contexts"]} == {"task", "step"}


@pytest.mark.rule("H-13")
def test_a_seek_goes_to_a_time_and_stays_within_the_recording(replaying: Replaying) -> None:
    viewer = replaying.join()
    replaying.control(viewer, state="paused")
    start = viewer.welcome["pod"]["replay"]["start_time"]
    assert replaying.control(viewer, "t", time=start + 1.6)["position"] == 5
    assert replaying.control(viewer, "u", position=10**9)["state"] == "ended"
    fresh = replaying.join()
    assert replaying.control(fresh, "v", position=-5)["position"] == 0


@pytest.mark.rule("H-13")
@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("state", "ended"),
        ("position", 1.5),
        ("position", "unknown"),
        ("position", True),
        ("time", "now"),
        ("time", 1e300),
        ("speed", 0),
        ("speed", 1e9),
        ("typo", 1),
    ],
)
def test_an_invalid_request_names_its_member(replaying: Replaying, member: str, value: Any) -> None:
    viewer = replaying.join()
    found = replaying.control(viewer, **{member: value})
    assert (found["error"], found["member"]) == ("invalid_replay", member)


def test_an_ordinary_pod_has_no_replay() -> None:
    harness = PodHarness("a")
    a = harness.join("a")
    harness.send(a, "pod/replay")
    assert a.errors == ["reserved_kind"]


@pytest.mark.rule("H-12")
def test_a_stretch_of_an_export_is_a_recording(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_bytes(b"".join(line + b"\n" for line in export(folder)))
    with open_recording(file, None, "m1", "m3") as recording:
        assert recording.name == "run"
        ids = [entry.id for entry in recording.read(recording.start, 1000)]
        assert ids == ["m1", "m2", "m3"]
    with (
        pytest.raises(LogToolError, match="no envelope 'x'"),
        open_recording(file, None, "x", None),
    ):
        pass
    with pytest.raises(LogToolError, match="no entries"), open_recording(file, None, "m3", "m1"):
        pass


@asynccontextmanager
async def serving(folder: Path, speed: float) -> AsyncIterator[ReplayGateway]:
    with open_recording(folder, None, None, None) as recording:
        config = replay_config("pod", 0, "token-of-the-viewer")
        gateway = ReplayGateway(config, asyncio.get_running_loop(), recording, speed)
        await gateway.listen()
        try:
            yield gateway
        finally:
            await gateway.drain()


@pytest.mark.anyio
@pytest.mark.rule("H-12", "H-13")
async def test_a_replay_over_sockets_with_history(folder: Path) -> None:
    async with (
        serving(folder, 1000.0) as gateway,
        connect(
            f"ws://localhost:{gateway.port}/ws?pod=pod",
            additional_headers={"Authorization": "Bearer token-of-the-viewer"},
        ) as client,
    ):
        async with asyncio.timeout(10):
            while True:
                envelope = json.loads(await client.recv())
                if envelope["kind"] == "system/replay" and envelope["payload"]["state"] == "ended":
                    break
        query = {"text": "hello", "order": "oldest"}
        await client.send(text("q", "viewer", "pod/history", query).decode())
        (*_, answer) = await receive_until(client, "q")
        ids = [each["envelope"]["id"] for each in answer["payload"]["entries"]]
        assert ids == ["m1", "m2", "m3", "m4", "m5"]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.anyio
async def test_the_command_serves_a_log_and_leaves_it_alone(folder: Path) -> None:
    before = contents(folder)
    async with started("replay", str(folder), "--speed", "1000", folder=folder.parent) as process:
        found = await process.wait_for(r"(ws://\S+), token (\S+)")
        async with joined(found[1], found[2]) as (_, welcome):
            assert welcome["pod"]["replay"]["end"] > 0
        process.process.terminate()
        assert await process.exit_code() == 0
    assert contents(folder) == before


def test_what_is_no_recording_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "missing")]) == 1
    (tmp_path / "file").write_text("text")
    assert main([str(tmp_path / "file")]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert all(line.startswith("mcpp replay: ") for line in errors)
