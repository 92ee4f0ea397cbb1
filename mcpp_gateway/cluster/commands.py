"""The command `mcpp cluster`: gateways, leaders, terms and lag, as their beats say."""

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from mcpp.cli.extras import importing
from mcpp.client import local_pod
from mcpp.errors import McppError
from mcpp_gateway import config as configuration
from mcpp_gateway import log_format
from mcpp_gateway.cluster.local_cluster import server_addresses
from mcpp_gateway.config import Config, ConfigError
from mcpp_gateway.core.cluster.messages import Beat, decode_beat

_LISTEN_SECONDS: Final = 1.0
_CONNECT_SECONDS: Final = 5.0
_EXIT_USAGE: Final = 2
_EXIT_UNHEALTHY: Final = 1


def main(argv: list[str]) -> int:
    """Show the gateways of a cluster and the pods that each of them leads."""
    parser = argparse.ArgumentParser(
        prog="mcpp cluster",
        description="Show the gateways of a cluster, with the pods that each of them leads. The "
        "exit code is 1 if there is no gateway, one cannot reach the log, or a pod has no leader.",
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
        beats = asyncio.run(_listen(config))
    except McppError as error:
        print(f"mcpp cluster: {log_format.escape(error)}", file=sys.stderr)
        return _EXIT_USAGE
    return _print(config, beats)


def _load(path: Path | None) -> Config:
    if path is not None:
        config = configuration.load(path)
        if config.log.kind != "jetstream":
            raise ConfigError(f'{path}: log.kind is "{config.log.kind}", not "jetstream"')
        return config
    pod = local_pod.find()
    if pod is None:
        raise ConfigError("no pod found; name a configuration with --config")
    config = configuration.load(pod.path)
    servers = config.cluster.servers or server_addresses(config.gateway.port, 3)
    cluster = msgspec.structs.replace(config.cluster, servers=servers)
    return msgspec.structs.replace(config, cluster=cluster)


async def _listen(config: Config) -> list[Beat]:
    with importing("cluster"):
        from mcpp_gateway.cluster.cluster_log import new_link
        from mcpp_gateway.cluster.nats_link import NatsMessage

    link = new_link(config.cluster, f"observer{os.getpid()}")
    found: dict[str, Beat] = {}

    def hear(message: NatsMessage) -> None:
        beat = decode_beat(message.data)
        found[beat.gateway] = beat

    try:
        await asyncio.wait_for(link.connect(), _CONNECT_SECONDS)
        await link.subscribe(f"{link.prefix}.beat", hear)
        await asyncio.sleep(_LISTEN_SECONDS)  # every gateway sends four in this time
    except TimeoutError:
        raise ConfigError(f"no NATS server answers at {config.cluster.shown_servers}") from None
    finally:
        await link.close()
    return sorted(found.values(), key=lambda beat: beat.address)


def _print(config: Config, beats: list[Beat]) -> int:
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
    leaders = {
        pod.replace("%", "."): (beat, said) for beat in beats for pod, said in beat.leads.items()
    }
    print(f"\n{'pod':<24} {'leader':<24} {'term':>6} {'records':>10}")
    for pod in config.pods:
        if pod in leaders:
            beat, said = leaders[pod]
            leader = beat.address or beat.gateway
            print(f"{pod:<24} {leader:<24} {said.term:>6} {said.sequence:>10}")
        else:
            print(f"{pod:<24} {'none':<24}")
    is_healthy = beats and all(beat.reachable for beat in beats)
    return 0 if is_healthy and leaders.keys() >= config.pods.keys() else _EXIT_UNHEALTHY
