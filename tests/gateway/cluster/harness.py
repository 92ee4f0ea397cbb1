"""A pod of a cluster whose log answers at once: it must behave like a pod on one gateway."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.core.cluster.leading.leadership import Silence
from mcpp_gateway.core.cluster.messages import decode_forward
from mcpp_gateway.core.cluster.pod import ClusterPod
from mcpp_gateway.core.cluster.records import ClusterState
from mcpp_gateway.core.cluster.wire import ClusterOptions
from mcpp_gateway.core.journal import Journal
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.core.sessions import ParticipantSettings
from tests.gateway.harness import EVERYTHING, PodHarness


class ClusterPodHarness(PodHarness):
    """Two gateways: the clients are at the first one, and either of the two leads."""

    leads_itself = True

    def _new_pod(
        self,
        ids: Iterable[str],
        limits: Mapping[str, Any],
        capabilities: Mapping[str, Sequence[Mapping[str, Any]]],
        multiple: Iterable[str],
        log: Journal | None,
    ) -> PodCore:
        several = set(multiple)
        settings = [
            ParticipantSettings(id, Capabilities(capabilities.get(id, EVERYTHING)), id in several)
            for id in ids
        ]
        numbers = count()
        self._records: list[bytes] = []
        self._applied = 0
        self._gateways: dict[str, ClusterPod] = {}
        for name in ("here", "there"):
            self._gateways[name] = ClusterPod(
                "test",
                settings,
                PodLimits(**limits),
                new_id=lambda: f"sys-{next(numbers)}",
                gateway=name,
                wire=_LoopWire(self),
                silence=Silence(),
                options=ClusterOptions(checkpoint_entries=20),
            )
        leader = self._gateways["here" if self.leads_itself else "there"]
        leader.delegation.may_lead = True
        self._is_ready = False
        for number in range(5):
            leader.delegation.step(self.now + number)
        while self._applied < len(self._records):
            self._apply_next()
        self._is_ready = True
        return self._gateways["here"]

    def run_cluster(self) -> None:
        """Carry everything that waits between the gateways and the log."""
        before = -1
        while before != len(self._records):
            before = len(self._records)
            for gateway in self._gateways.values():
                gateway.delegation.flush(self.now)
            while self._applied < len(self._records):
                self._apply_next()

    def append(self, record: bytes) -> None:
        self._records.append(record)

    def forward(self, gateway: str, message: bytes) -> None:
        self._gateways[gateway].delegation.hear(decode_forward(message), self.now)

    def relay(self, text: bytes) -> None:
        self._gateways["there"].relay(text, self.now)

    def wake(self) -> None:
        if self._is_ready:
            self._scheduler.call_soon(self.run_cluster)

    def tick(self, seconds: float = 0.0) -> None:
        super().tick(seconds)
        self._gateways["there"].tick(self.now)
        self._scheduler.run()

    def _apply_next(self) -> None:
        record = self._records[self._applied]
        self._applied += 1
        for name, gateway in self._gateways.items():
            effects = gateway.apply(self._applied, record, self.now)
            if name == "here" and effects:
                self.hub.perform_all(effects)


class FollowingPodHarness(ClusterPodHarness):
    """The clients are at a gateway that does not lead."""

    leads_itself = False


class _LoopWire:
    def __init__(self, harness: ClusterPodHarness) -> None:
        self.append: Callable[[bytes], None] = harness.append
        self.forward: Callable[[str, bytes], None] = harness.forward
        self.wake: Callable[[], None] = harness.wake
        self.relay: Callable[[bytes], None] = harness.relay

    def save(self, state: ClusterState) -> None:
        """Keep nothing: no gateway starts later."""
