"""The command `mcpp admin`."""

import argparse
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from mcpp.errors import AddressError, McppError
from mcpp_gateway import log_format
from mcpp_gateway.admin.client import AdminClient

_EXIT_USAGE: Final = 2
_VIEWS: Final = ("status", "pods", "participants", "connections", "limits")


class TokenError(McppError):
    """There is no token, or its file cannot be used."""


def main(argv: list[str]) -> int:
    """Show the state of a gateway, close connections, revoke tokens, drain."""
    arguments = _parser().parse_args(argv)
    try:
        client = AdminClient(arguments.url, _token(arguments), arguments.ca)
        if arguments.command in _VIEWS:
            query = {"pod": arguments.pod, "participant": getattr(arguments, "participant", None)}
            given = {name: value for name, value in query.items() if value is not None}
            found = client.get(arguments.command, given)
        else:
            found = client.post(arguments.command, _body(arguments))
    except McppError as error:
        print(f"mcpp admin: {log_format.escape(error)}", file=sys.stderr)
        return _EXIT_USAGE if isinstance(error, (AddressError, TokenError)) else 1
    print(json.dumps(found, indent=2) if arguments.json else _text(found))
    is_vain = arguments.command == "kick" and found.get("closed") == 0
    return 1 if is_vain else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcpp admin",
        description="Look at a running gateway and act on it. The gateway needs a section [admin].",
    )
    parser.add_argument(
        "--url",
        default=os.environ.get("MCPP_ADMIN_URL", "http://127.0.0.1:8787"),
        help="the gateway's address (default: MCPP_ADMIN_URL, or http://127.0.0.1:8787)",
    )
    parser.add_argument(
        "--token-file", type=Path, help="a file with the token (default: MCPP_ADMIN_TOKEN)"
    )
    parser.add_argument(
        "--ca",
        metavar="FILE",
        default=os.environ.get("MCPP_CA"),
        help="the certificate of the authority that signed the gateway's (default: MCPP_CA, or the "
        "system's authorities)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in (
        ("status", "state of the gateway"),
        ("pods", "its pods"),
        ("participants", "participants that are configured or present"),
        ("connections", "connections with address, client and lag"),
        ("limits", "limits of a pod or a participant"),
    ):
        view = commands.add_parser(name, help=text)
        view.add_argument("--pod", help="of this pod only")
        if name in ("connections", "limits"):
            view.add_argument("--participant", help="of this participant only")
    kick = commands.add_parser("kick", help="close connections; their clients may come back")
    kick.add_argument("participant", nargs="?")
    kick.add_argument("--connection", help="its id, as `connections` shows it")
    kick.add_argument("--pod")
    revoke = commands.add_parser("revoke", help="revoke signed tokens and close their connections")
    revoke.add_argument("name", help="a participant, or a token's id")
    commands.add_parser("drain", help="stop the gateway; clients resume elsewhere, or later")
    return parser


def _token(arguments: argparse.Namespace) -> str:
    if arguments.token_file is None:
        token = os.environ.get("MCPP_ADMIN_TOKEN", "")
    else:
        try:
            token = arguments.token_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise TokenError(f"{arguments.token_file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise TokenError(f"{arguments.token_file}: is no text in UTF-8") from None
    if not token or not token.isascii() or not token.isprintable():
        raise TokenError("no token: use --token-file, or set MCPP_ADMIN_TOKEN")
    return str(token)


def _body(arguments: argparse.Namespace) -> dict[str, Any]:
    names = {"kick": ("participant", "connection", "pod"), "revoke": ("name",)}
    given = {name: getattr(arguments, name) for name in names.get(arguments.command, ())}
    return {name: value for name, value in given.items() if value is not None}


def _text(found: Any) -> str:
    """Return an answer as a table, or as one line for each of its members."""
    if isinstance(found, dict):
        width = max([24, *(len(name) + 2 for name in found)])
        lines = (f"{name:{width}}{_cell(name, value)}" for name, value in found.items())
        return "\n".join(lines)
    if not found:
        return "none"
    columns = list(found[0])
    rows = [columns, *([_cell(name, row.get(name)) for name in columns] for row in found)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _cell(name: str, value: Any) -> str:
    """Return a value as people read it."""
    if value is None or value == {}:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "expires" and isinstance(value, float):
        return datetime.fromtimestamp(value, UTC).isoformat(sep=" ", timespec="seconds")
    if isinstance(value, dict):
        return log_format.escape(", ".join(f"{key} {count}" for key, count in value.items()))
    return log_format.escape(value)
