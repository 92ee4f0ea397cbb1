"""Command-line options that the commands share: the pod's address, our name, numbers, URLs.

The pod is found by `--url` and `--token`, by the environment, or by `.mcpp/` in this folder.
"""

import argparse
import math
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from mcpp import McppError
from mcpp.client import local_pod


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the pod's address and token."""
    group = parser.add_argument_group(
        "the pod (default: MCPP_URL and MCPP_TOKEN, or .mcpp/ in this folder)"
    )
    group.add_argument("--url", help="the gateway's address, such as ws://127.0.0.1:8787/ws?pod=x")
    tokens = group.add_mutually_exclusive_group()
    tokens.add_argument(
        "--token", help="the participant's token; other users can see it in the process list"
    )
    tokens.add_argument("--token-file", help="a file with the token; read for every connection")
    tokens.add_argument("--token-command", help="a command that prints the token; run likewise")
    group.add_argument(
        "--ca",
        metavar="FILE",
        help="the certificate of the authority that signed the gateway's (default: MCPP_CA, or the "
        "system's authorities)",
    )


def add_color(parser: argparse.ArgumentParser) -> None:
    """Add the option for colours."""
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")


def is_coloured(choice: str) -> bool:
    """Return whether to print colours: by the option, the terminal and NO_COLOR."""
    if choice != "auto":
        return choice == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def add_name(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add the option for the participant's name."""
    suffix = "" if default is None else " (default: %(default)s)"
    parser.add_argument(
        "--as",
        dest="name",
        default=default,
        metavar="NAME",
        help=f"join as this participant{suffix}",
    )


def address_of(arguments: argparse.Namespace, name: str) -> local_pod.Address:
    """Return the address and token with which an agent of this name joins.

    Raises PodNotFoundError when neither the options nor the environment name a pod.
    """
    return local_pod.locate(name, environ_of(arguments))


def address_of_person(arguments: argparse.Namespace, name: str | None = None) -> local_pod.Address:
    """Return the address and token of a person, who may join several times at once.

    Without a name, it is the user of this machine. Raises PodNotFoundError when neither the options
    nor the environment name a pod.
    """
    return local_pod.locate(name or local_pod.person(), environ_of(arguments), is_person=True)


def gateway_url(arguments: argparse.Namespace) -> str:
    """Return the gateway's address, for a command that joins with other participants' tokens.

    Raises PodNotFoundError when neither the options nor the environment name a pod.
    """
    environ = environ_of(arguments)
    if "MCPP_URL" in environ:
        return environ["MCPP_URL"]
    return local_pod.locate(local_pod.person(), environ, is_person=True).url


def read_text(path: Path | None) -> str:
    """Return a file's text, empty without a path. Raises McppError if it cannot be read."""
    try:
        return "" if path is None else path.read_text(encoding="utf-8")
    except OSError as error:
        raise McppError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise McppError(f"{path} is not valid UTF-8: {error}") from None


def positive(text: str) -> int:
    """Parse an option's value as an integer of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return number


def seconds(text: str) -> float:
    """Parse an option's value as a finite, non-negative number of seconds."""
    number = float(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds, not {text}")
    return number


def web_address(text: str) -> str:
    """Parse an option's value as an HTTP URL, so that a typing error is reported at once."""
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or host
        is_address = False
    if not is_address or any(map(str.isspace, text)):
        raise argparse.ArgumentTypeError(f"must be like https://HOST/PATH, not {text!r}")
    return text


def environ_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the environment, with the options for the pod in place of its variables."""
    tokens = {
        "MCPP_TOKEN": arguments.token,
        "MCPP_TOKEN_FILE": arguments.token_file,
        "MCPP_TOKEN_COMMAND": arguments.token_command,
    }
    environ = dict(os.environ)
    if any(value is not None for value in tokens.values()):
        for name in tokens:  # an option takes the place of any of the variables
            environ.pop(name, None)
    given = {"MCPP_URL": arguments.url, "MCPP_CA": arguments.ca, **tokens}
    return environ | {name: value for name, value in given.items() if value is not None}
