"""`mcpp bench`: how fast a running gateway is, from where you are."""

import argparse
import secrets
import sys
from typing import Final
from urllib.parse import urlsplit

import anyio

import mcpp
from mcpp.client import local_pod
from mcpp_agents.bench.load import Load, LoadError
from mcpp_agents.bench.wire import GatewayWire
from mcpp_agents.cli import options

NAME: Final = "bench"
_WINDOW: Final = 64
# Of the rate that the gateway allows, so that no envelope of a steady stream is refused.
_SHARE: Final = 0.9
_FASTEST_PACE: Final = 1_000


def main(argv: list[str]) -> int:
    """Measure a gateway and print what was found."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.senders > arguments.receivers:
        parser.error("--senders are among the receivers, so there cannot be more of them")
    if not arguments.seconds:
        parser.error("--seconds must be more than 0")
    address = options.address_of_person(arguments, arguments.name)
    pod, me, allowed, longest = anyio.run(_ask, address, arguments.name)
    if arguments.size > longest:
        raise LoadError(f"an envelope may have {longest:.0f} bytes here (max_message_bytes)")
    parts = urlsplit(address.url)
    if parts.scheme != "ws" or parts.hostname is None:
        raise LoadError("speaks plain ws:// alone; measure from the gateway's own machine")
    wire = GatewayWire(
        parts.netloc,
        f"{parts.path}?{parts.query}" if parts.query else parts.path,
        [address.token],
        senders=[me] * arguments.senders,
        size=arguments.size,
        kind=NAME,
        run=f"bench-{secrets.token_hex(4)}",
        marked=True,
    )
    _say(
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
            _measure(load, arguments, allowed)
    except LoadError as error:
        if "closed a connection" in str(error):
            hint = f"is {me} allowed several connections (multiple = true)?"
            raise LoadError(f"{error}; {hint}") from None
        raise
    except OSError as error:
        raise LoadError(f"cannot reach {parts.netloc}: {error.strerror or error}") from None
    return 0


def _measure(load: Load, arguments: argparse.Namespace, allowed: float) -> None:
    rate = min(arguments.rate, allowed * _SHARE if allowed else arguments.rate)
    _tell(f"latency at {rate:.0f} a second, for {arguments.seconds:g} s ...")
    found = load.pace(rate=rate, seconds=arguments.seconds)
    p50, p99 = (found[int(share * (len(found) - 1))] * 1000 for share in (0.5, 0.99))
    _say(
        f"to the last receiver, at {rate:.0f} envelopes a second: "
        f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, at most {found[-1] * 1000:.2f} ms"
    )
    if allowed:
        _say(
            f"throughput: not measured, since {allowed:g} envelopes a second are allowed; "
            "limits.messages_per_second = 0 lifts that"
        )
        return
    _tell(f"throughput, for {arguments.seconds:g} s ...")
    flood = load.flood(window=_WINDOW, warm_up=0.5, seconds=arguments.seconds)
    _say(
        f"throughput: {flood.rate:,.0f} deliveries a second, "
        f"{flood.rate / arguments.receivers:,.0f} envelopes"
    )
    if flood.client_busy > _SHARE:
        _say("the clients were busy all the time: the gateway may well be faster than that")


async def _ask(address: local_pod.Address, name: str) -> tuple[str, str, float, float]:
    """Join once as anyone would; return the pod's name, our own, and what we may send.

    That is how many envelopes a second, and of how many bytes.
    """
    async with mcpp.connect(address, name=name if address.fresh else None) as pod:
        await pod.send(NAME, {"text": "mcpp bench begins"})
        allowed = pod.limits.get("messages_per_second", 0)
        longest = pod.limits.get("max_message_bytes", 1 << 20)
        assert isinstance(allowed, int | float)
        assert isinstance(longest, int | float)
        return pod.name, pod.me, float(allowed), float(longest)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcpp bench",
        description="Measure a running gateway: how long an envelope takes to the last of its "
        "receivers and, where rates are not limited, how many it delivers. The envelopes (of kind "
        f"{NAME!r}) stay in the pod's history, so use a pod of its own for it.",
    )
    parser.add_argument(
        "--receivers", type=options.positive, default=20, metavar="N", help="default: 20"
    )
    parser.add_argument(
        "--senders", type=options.positive, default=4, metavar="N", help="default: 4"
    )
    parser.add_argument(
        "--size", type=options.positive, default=400, metavar="BYTES", help="default: 400"
    )
    parser.add_argument("--seconds", type=options.seconds, default=5.0, help="each, default: 5")
    parser.add_argument(
        "--rate",
        type=options.positive,
        default=_FASTEST_PACE,
        help="for the latency, default: 1000",
    )
    parser.add_argument("--as", dest="name", default=NAME, metavar="NAME", help="default: bench")
    options.add_arguments(parser)
    return parser
