"""`mcpp bench`: measure the latency and throughput of a running gateway."""

import argparse
import secrets
import sys
from typing import Final
from urllib.parse import urlsplit

import anyio

import mcpp
from mcpp.client import local_pod
from mcpp.transports.token_sources import read_token
from mcpp_agents.bench.load import Load, LoadError
from mcpp_agents.bench.wire import GatewayWire
from mcpp_agents.cli import options

NAME: Final = "bench"
_WINDOW: Final = 64
# The share of the allowed rate that is used, so that no envelope of a steady stream is refused.
_RATE_SHARE: Final = 0.9
# Above this share of CPU time, the clients may have limited the measured throughput.
_BUSY_SHARE: Final = 0.9
_DEFAULT_RATE: Final = 1_000


def main(argv: list[str]) -> int:
    """Measure a gateway and print the results."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.senders > arguments.receivers:
        parser.error("--senders must not exceed --receivers, since senders receive too")
    if not arguments.seconds:
        parser.error("--seconds must be more than 0")
    address = options.address_of_person(arguments, arguments.name)
    pod, me, allowed_rate, max_bytes = anyio.run(_read_limits, address)
    if arguments.size > max_bytes:
        raise LoadError(
            f"the gateway accepts at most {max_bytes:.0f} bytes per envelope (max_message_bytes)"
        )
    parts = urlsplit(address.url)
    if parts.scheme != "ws" or parts.hostname is None:
        raise LoadError("only plain ws:// is supported; measure on the gateway's own machine")
    wire = GatewayWire(
        parts.netloc,
        f"{parts.path}?{parts.query}" if parts.query else parts.path,
        [anyio.run(read_token, address.token)],
        senders=[me] * arguments.senders,
        size=arguments.size,
        kind=NAME,
        run=f"bench-{secrets.token_hex(4)}",
        marked=True,
    )
    _print_result(
        f"{parts.netloc}, pod {pod}: {arguments.receivers} receivers, "
        f"{arguments.senders} of them senders, envelopes of {arguments.size} bytes"
    )
    try:
        with Load(
            (parts.hostname, parts.port or 80),
            wire,
            clients=arguments.receivers,
            senders=arguments.senders,
        ) as load:
            _measure(load, arguments, allowed_rate)
    except LoadError as error:
        if "closed a connection" in str(error):
            hint = f"may {me} have several connections (multiple = true)?"
            raise LoadError(f"{error}; {hint}") from None
        raise
    except OSError as error:
        raise LoadError(f"cannot reach {parts.netloc}: {error.strerror or error}") from None
    return 0


def _measure(load: Load, arguments: argparse.Namespace, allowed_rate: float) -> None:
    rate = min(arguments.rate, allowed_rate * _RATE_SHARE if allowed_rate else arguments.rate)
    _print_progress(f"measuring latency at {rate:.0f} a second for {arguments.seconds:g} s ...")
    latencies = load.measure_latency(rate=rate, seconds=arguments.seconds)
    p50, p99 = (latencies[int(share * (len(latencies) - 1))] * 1000 for share in (0.5, 0.99))
    _print_result(
        f"latency to the last receiver at {rate:.0f} envelopes a second: "
        f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, maximum {latencies[-1] * 1000:.2f} ms"
    )
    if allowed_rate:
        _print_result(
            f"throughput: not measured, since {allowed_rate:g} envelopes a second are allowed; "
            "limits.messages_per_second = 0 removes the limit"
        )
        return
    _print_progress(f"measuring throughput for {arguments.seconds:g} s ...")
    throughput = load.measure_throughput(window=_WINDOW, warm_up=0.5, seconds=arguments.seconds)
    _print_result(
        f"throughput: {throughput.rate:,.0f} deliveries a second, "
        f"{throughput.rate / arguments.receivers:,.0f} envelopes"
    )
    if throughput.client_busy > _BUSY_SHARE:
        _print_result("the clients used all their CPU time; the gateway may be faster")


async def _read_limits(address: local_pod.Address) -> tuple[str, str, float, float]:
    """Join once; return the pod's name, our name, and the limits of our rate and envelope size."""
    async with mcpp.connect(address) as pod:
        await pod.send(NAME, {"text": "mcpp bench starts"})
        allowed_rate = pod.limits.get("messages_per_second", 0)
        max_bytes = pod.limits.get("max_message_bytes", 1 << 20)
        assert isinstance(allowed_rate, int | float)
        assert isinstance(max_bytes, int | float)
        return pod.name, pod.me, float(allowed_rate), float(max_bytes)


def _print_result(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _print_progress(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcpp bench",
        description="Measure a running gateway: the latency of an envelope to the last of its "
        "receivers and, if rates are not limited, the throughput. The envelopes (of kind "
        f"{NAME!r}) stay in the pod's history, so use a separate pod.",
    )
    for option, default, metavar, meaning in (
        ("--receivers", 20, "N", "the number of connections"),
        ("--senders", 4, "N", "how many of them send too"),
        ("--size", 400, "BYTES", "the size of an envelope"),
        ("--rate", _DEFAULT_RATE, "N", "envelopes a second while latency is measured"),
    ):
        parser.add_argument(
            option,
            type=options.positive,
            default=default,
            metavar=metavar,
            help=f"{meaning} (default: {default})",
        )
    parser.add_argument(
        "--seconds", type=options.seconds, default=5.0, help="per measurement (default: 5)"
    )
    options.add_name(parser, default=NAME)
    options.add_arguments(parser)
    return parser
