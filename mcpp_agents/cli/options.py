"""How the commands find their pod: `--url` and `--token`, the environment, or `.mcpp/` here.

And how they read their numbers and other addresses.
"""

import argparse
import math
import os
from urllib.parse import urlsplit

from mcpp.client import local_pod


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the pod is."""
    where = parser.add_argument_group("the pod (default: MCPP_URL and MCPP_TOKEN, or .mcpp/ here)")
    where.add_argument("--url", help="the gateway's address, such as ws://127.0.0.1:8787/ws?pod=x")
    where.add_argument("--token", help="a participant's token; others see it in the process list")


def address_of(arguments: argparse.Namespace, name: str) -> local_pod.Address:
    """Return where an agent of this name joins.

    Raises PodNotFoundError when nothing says where.
    """
    return local_pod.locate(name, _environ(arguments))


def address_of_person(arguments: argparse.Namespace, name: str | None = None) -> local_pod.Address:
    """Return where the person at this machine joins, perhaps from several terminals at once.

    Raises PodNotFoundError when nothing says where.
    """
    return local_pod.locate(name or local_pod.person(), _environ(arguments), multiple=True)


def positive(text: str) -> int:
    """Read a number of things as an option gives it."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def seconds(text: str) -> float:
    """Read a time as an option gives it."""
    number = float(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not {text}")
    return number


def web_address(text: str) -> str:
    """Read an address on the web as an option gives it: one slip is told at once, not at a call."""
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or a host that is none
        is_address = False
    if not is_address or any(map(str.isspace, text)):
        raise argparse.ArgumentTypeError(f"must be like https://HOST/PATH, not {text!r}")
    return text


def _environ(arguments: argparse.Namespace) -> dict[str, str]:
    given = {"MCPP_URL": arguments.url, "MCPP_TOKEN": arguments.token}
    return os.environ | {name: value for name, value in given.items() if value is not None}
