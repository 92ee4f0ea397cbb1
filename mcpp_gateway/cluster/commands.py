"""The command `mcpp cluster`: gateways, leaders, terms and lag, as their beats say.

Which NATS servers have a copy of each pod's log is asked of JetStream.
"""

import argparse
import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from mcpp.cli.extras import importing
from mcpp.client import local_pod
from mcpp.errors import McppError
from mcpp_gateway import log_format
from mcpp_gateway.cluster import local_cluster
from mcpp_gateway.config import Config, ConfigError
from mcpp_gateway.core.cluster.messages import Beat, decode_beat

_LISTEN_SECONDS: Final = 1.0
_EXIT_USAGE: Final = 2
_EXIT_UNHEALTHY: Final = 1
_SILENT_NANOSECONDS: Final = 5_000_000_000  # servers hear each other every second


class Copies(NamedTuple):
    """How many NATS servers should have a copy of a log, and which of them are away."""

    wanted: int
    away: list[str]

    def __str__(self) -> str:
        return f"{self.wanted - len(self.away)} of {self.wanted}"


class _Overview(NamedTuple):
    beats: list[Beat]
    copies: dict[str, Copies]  # by pod; none if JetStream does not answer


def main(argv: list[str]) -> int:
    """Show the gateways of a cluster and the pods that each of them leads."""
    parser = argparse.ArgumentParser(
        prog="mcpp cluster",
        description="Show the gateways of a cluster, with the pods that each of them leads. The "
        "exit code is 1 if no NATS server answers, there is no gateway, one cannot reach the log, "
        "a pod has no leader, or a NATS server that should have a copy of a log is away.",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="configuration of the gateways (default: the pod in this folder)",
    )
    arguments = parser.parse_args(argv)
    try:
        config = _load(arguments.config)
        found = asyncio.run(_listen(config))
    except McppError as error:
        print(f"mcpp cluster: {log_format.escape(error)}", file=sys.stderr)
        return _EXIT_USAGE if isinstance(error, ConfigError) else _EXIT_UNHEALTHY
    return _print(config, found)


def _load(path: Path | None) -> Config:
    if path is not None:
        return local_cluster.load(path)
    pod = local_pod.find()
    if pod is None:
        raise ConfigError("no pod found; name a configuration with --config")
    return local_cluster.load(pod.path)


async def _listen(config: Config) -> _Overview:
    with importing("cluster"):
        from mcpp_gateway.cluster.cluster_log import command_streams
        from mcpp_gateway.cluster.nats_link import LinkError, NatsMessage

    found: dict[str, Beat] = {}
    copies: dict[str, Copies] = {}

    def hear(message: NatsMessage) -> None:
        beat = decode_beat(message.data)
        found[beat.gateway] = beat

    async with command_streams(config, "observer") as streams:

        async def ask(pod: str) -> None:
            with suppress(LinkError):
                info = await streams.info(streams.log_stream(pod))
                if info is not None:
                    copies[pod] = _copies(info)

        await streams.link.subscribe(f"{streams.link.prefix}.beat", hear)
        listening = asyncio.sleep(_LISTEN_SECONDS)  # every gateway sends four in this time
        await asyncio.gather(listening, *map(ask, config.pods))
    return _Overview(sorted(found.values(), key=lambda beat: beat.address), copies)


def _copies(info: dict[str, Any]) -> Copies:
    """Return where the copies of a stream are, given what JetStream says about it."""
    replicas = info.get("cluster", {}).get("replicas", ())
    away = [each["name"] for each in replicas if _is_away(each)]
    return Copies(info["config"]["num_replicas"], away)


def _is_away(replica: dict[str, Any]) -> bool:
    """Return whether the leader of a stream does not hear another server."""
    silent = replica.get("active", 0)  # 0: since it leads it has heard nothing at all
    is_unheard = not silent and not replica.get("current")
    return is_unheard or silent > _SILENT_NANOSECONDS or bool(replica.get("offline"))


def _print(config: Config, found: _Overview) -> int:
    beats, copies = found
    print(f"{'gateway':<14} {'address':<24} {'sessions':>8} {'leads':>5} {'lag':>5}")
    for beat in beats:
        state = "  stopping" if beat.stopping else ""
        if not beat.reachable:
            state += "  log out of reach"
        if beat.outdated:
            state += "  older version: it does not lead"
        print(
            f"{beat.gateway:<14} {beat.address:<24} {beat.sessions:>8} {len(beat.leads):>5} "
            f"{beat.lag:>5}{state}"
        )
    if not beats:
        print(f"none; NATS answers, but no gateway uses the cluster.name {config.cluster.name!r}")
    # Of two gateways that say so, the one with the higher term leads: the other was replaced.
    by_term = sorted(
        ((said.term, pod, beat, said) for beat in beats for pod, said in beat.leads.items()),
        key=lambda each: each[0],
    )
    leaders = {pod.replace("%", "."): (beat, said) for _, pod, beat, said in by_term}
    print(f"\n{'pod':<24} {'leader':<24} {'term':>6} {'records':>10}  copies")
    for pod in config.pods:
        if pod in leaders:
            beat, said = leaders[pod]
            leader = beat.address or beat.gateway
            where = copies.get(pod, "unknown")
            print(f"{pod:<24} {leader:<24} {said.term:>6} {said.sequence:>10}  {where}")
        else:
            print(f"{pod:<24} {'none':<24}")
    away = sorted({server for each in copies.values() for server in each.away})
    if away:
        print(f"\nNATS servers that are away: {', '.join(away)}")
    is_known = copies.keys() >= config.pods.keys()
    is_healthy = beats and is_known and not away and all(beat.reachable for beat in beats)
    return 0 if is_healthy and leaders.keys() >= config.pods.keys() else _EXIT_UNHEALTHY
