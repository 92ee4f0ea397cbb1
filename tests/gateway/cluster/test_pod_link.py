"""What a gateway takes from the stream of a real NATS server, and when it gives up."""

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import anyio
import pytest

from mcpp_gateway.cluster import transfer
from mcpp_gateway.cluster.archive import PodArchive
from mcpp_gateway.cluster.cluster_log import new_link
from mcpp_gateway.cluster.log_copy import LogCopy
from mcpp_gateway.cluster.nats_link import NatsLink, NatsMessage
from mcpp_gateway.cluster.nats_servers import NatsServers
from mcpp_gateway.cluster.pod_link import PodLink
from mcpp_gateway.cluster.streams import StreamLostError, Streams
from mcpp_gateway.config.sections import RetentionSection
from mcpp_gateway.core.cluster.leading.leadership import Silence
from mcpp_gateway.core.cluster.messages import PodBeat
from mcpp_gateway.core.cluster.pod import ClusterPod
from mcpp_gateway.core.cluster.records import Claim, ClusterState, encode_record
from mcpp_gateway.core.records import State
from tests.gateway.cluster.test_gateways import configure

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

NAMES = count()
TERMS = count(100)


def claim(term: int, *, applied: int = 0, gateway: str = "other") -> bytes:
    return encode_record(Claim(term, gateway, float(term), "epoch", applied=applied))


def republished(sequence: int, record: bytes) -> NatsMessage:
    return NatsMessage("mcpp.demo.out", record, {"Nats-Sequence": str(sequence)})


class BusyStreams(Streams):
    """Streams whose leader stores a record, and a state of it, after every answer."""

    async def info(self, stream: str) -> dict[str, Any] | None:
        found = await super().info(stream)
        if found is not None and stream == self.log_stream("demo"):
            await self._grow()
        return found

    async def load_state(self, pod: str) -> ClusterState | None:
        found = await super().load_state(pod)
        await self._grow()
        return found

    async def _grow(self) -> None:
        leader = Streams(self.link, 1, RetentionSection())
        (end,) = await leader.append("demo", [claim(next(TERMS))])
        inner = State("epoch", next(TERMS), 0, 0, 0.0)
        await leader.store_state("demo", ClusterState(1, end, 1, None, inner))


class Follower:
    """One pod's link to the servers, without a gateway around it."""

    streams: Streams

    def __init__(
        self, nats: NatsServers, link: NatsLink, executor: ThreadPoolExecutor, *, is_busy: bool
    ) -> None:
        found = configure(nats)
        name = f"g{next(NAMES)}"
        self.failures: list[BaseException] = []
        self.streams = (BusyStreams if is_busy else Streams)(link, 1, found.log.retention)
        self.link = PodLink(
            "demo",
            link,
            self.streams,
            loop=asyncio.get_running_loop(),
            clock=lambda: 0.0,
            perform=lambda effects: None,
            on_failure=self.failures.append,
        )
        self.pod = self.link.pod = ClusterPod(
            "demo",
            (),
            found.limits,
            new_id=lambda: "",
            gateway=name,
            wire=self.link,
            silence=Silence(),
        )
        self.link.archive = PodArchive(
            "demo",
            LogCopy(nats.folder / name),
            self.streams,
            journal=self.pod.replica.journal,
            executor=executor,
            retain=lambda copy: None,
        )


@asynccontextmanager
async def following(
    nats: NatsServers, *records: bytes, is_busy: bool = False
) -> AsyncIterator[Follower]:
    """Open a pod's link beside a stream that holds some records."""
    link = new_link(configure(nats).cluster, "test")
    await link.connect()
    with ThreadPoolExecutor(1) as executor:
        follower = Follower(nats, link, executor, is_busy=is_busy)
        try:
            await follower.streams.create_states()
            await follower.streams.create("demo")
            if records:
                await follower.streams.append("demo", list(records))
            await follower.link.open()
            yield follower
        finally:
            await link.close()
            await follower.link.archive.close()


@pytest.mark.rule("N-14")
async def test_another_record_at_a_passed_place_shows_a_loss_whoever_wrote_it(
    nats: NatsServers,
) -> None:
    async with following(nats, claim(1), claim(2), claim(3)) as follower:
        follower.link.receive_record(republished(3, claim(9, applied=2)))  # it was not ahead
        (error,) = follower.failures
        assert isinstance(error, StreamLostError)
        assert "has lost its end: 3 records were applied here, and record 3" in str(error)


@pytest.mark.rule("N-14")
async def test_a_record_that_shows_a_loss_may_come_twice(nats: NatsServers) -> None:
    after_loss = claim(2, applied=1000)
    async with following(nats, claim(1), after_loss) as follower:
        follower.link.receive_record(republished(2, after_loss))
        assert follower.failures == []


@pytest.mark.rule("N-14")
async def test_a_gateway_that_was_cut_off_notices_that_the_log_is_another_one(
    nats: NatsServers,
) -> None:
    async with following(nats, claim(1), claim(2)) as follower:
        stream = follower.streams.log_stream("demo")
        await follower.streams.call(f"STREAM.DELETE.{stream}", {})
        await follower.streams.create("demo")
        await follower.streams.append("demo", [claim(number) for number in (5, 6, 7)])
        follower.link.receive_beat("other", PodBeat(7, 3))  # all that it hears
        with anyio.fail_after(30):
            for now in count():
                if follower.failures:
                    break
                follower.link.step(float(now))
                await anyio.sleep(0.01)
        assert isinstance(follower.failures[0], StreamLostError)
        assert follower.pod.replica.sequence == 2


@pytest.mark.rule("N-14")
async def test_a_gateway_that_starts_beside_a_busy_leader_reports_no_loss(
    nats: NatsServers, caplog: pytest.LogCaptureFixture
) -> None:
    with anyio.fail_after(30):
        async with following(nats, claim(1), is_busy=True) as follower:
            assert follower.pod.replica.sequence > 1
    assert "has lost its end" not in caplog.text
    assert "cannot read the log yet" not in caplog.messages


@pytest.mark.rule("N-12", "N-14")
async def test_an_export_beside_a_busy_leader_reports_no_loss(
    nats: NatsServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(nats, claim(1), claim(2), claim(3)) as follower:
        stream = follower.streams.log_stream("demo")
        await follower.streams.call(f"STREAM.PURGE.{stream}", {"seq": 3})
        monkeypatch.setattr(transfer, "Streams", BusyStreams)
        lines = [each async for each in transfer.export(configure(nats), "demo", seal=False)]
        assert json.loads(lines[0])["epoch"] == "epoch"
