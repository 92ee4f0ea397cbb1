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
    # Another record may be on its way while those before it are few and small. Behind a large one,
    # what waits shares the next: every record is written to every connection by itself.
    in_flight: int = 4
    in_flight_bytes: int = 32_768
    # A state is kept this often. It holds the dedupe window: with 10,000 ids every 10,000 entries,
    # encoding took 0.4 µs an entry.
    checkpoint_entries: int = 30_000
