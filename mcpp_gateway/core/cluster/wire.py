"""What a clustered pod needs of its surroundings, and when it gives other gateways up."""

from typing import Protocol

import msgspec

from mcpp_gateway.core.cluster.records import ClusterState


class Wire(Protocol):
    """What a clustered pod asks of its surroundings. Nothing here is certain to arrive."""

    def append(self, record: bytes) -> None:
        """Add a record to the log."""

    def forward(self, gateway: str, message: bytes) -> None:
        """Send commands to a gateway."""

    def relay(self, text: bytes) -> None:
        """Send a live part to all other gateways, if there is room."""

    def wake(self) -> None:
        """Call `flush` at the end of this tick."""

    def save(self, state: ClusterState) -> None:
        """Keep a state, from which gateways that start can go on."""


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """When gateways are given up, and how much is on its way."""

    suspect_seconds: float = 1.0  # a silent leader
    gone_seconds: float = 5.0  # a silent gateway: its sessions are ended
    rejoin_seconds: float = 30.0  # its participants have this long to come back
    # Records on their way. More would not be faster: what waits meanwhile shares the next one, and
    # every record is written to every connection by itself.
    in_flight: int = 2
    checkpoint_entries: int = 10_000  # a state is kept this often
