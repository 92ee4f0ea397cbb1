"""`mcpp send`: send one envelope to a pod, from a script or a pipe."""

import argparse
import sys
from typing import Any

import anyio
import msgspec

import mcpp
from mcpp import kinds
from mcpp.payloads import text_payload
from mcpp_agents.cli import options
from mcpp_agents.cli.display import format_answer, is_failure
from mcpp_agents.send.exchange import send, wait_for_answer


def main(argv: list[str]) -> int:
    """Send one envelope; print its id, or with --wait the answer."""
    arguments = _read_arguments(argv)
    has_text = bool(arguments.text or arguments.attach)
    text = " ".join(arguments.text) if has_text else _read_standard_input()
    payload = _decode_json(text) if arguments.json else text_payload(arguments.kind, text)
    context = None
    if arguments.context is not None:
        context = mcpp.Context(id=arguments.context, type=arguments.type, parent=arguments.parent)

    async def run() -> tuple[str, int]:
        address = options.address_of_person(arguments, arguments.name)
        async with mcpp.connect(address, name=arguments.name) as pod:
            attached = [await pod.attach(path) for path in arguments.attach]
            sent = await send(
                pod,
                arguments.kind,
                payload,
                to=arguments.to,
                context=context,
                correlation_id=arguments.answers,
                attachments=attached,
                is_awaited=arguments.wait is not None,
            )
            if arguments.wait is None:
                return sent.id, 0
            answer = await wait_for_answer(pod, sent, arguments.wait)
            return format_answer(answer), 1 if is_failure(answer) else 0

    printed, code = anyio.run(run)
    sys.stdout.write(printed + "\n")
    return code


def _read_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="mcpp send",
        description="Send one envelope and print its id. Without a text argument and a file, the "
        "text is read from standard input. With --wait, print the answer, and exit with 1 if it is "
        "an error.",
        epilog="To call a tool: --kind mcp/request:tools/call:TOOL --to NAME --json "
        '\'{"params": {"arguments": {...}}}\'. The other members of a request (jsonrpc, id, '
        "method, params.name) are added.",
    )
    parser.add_argument("text", nargs="*", help="the text, or with --json the payload")
    parser.add_argument("--to", action="append", metavar="NAME", help="an addressee; repeatable")
    parser.add_argument("--kind", default=kinds.CHAT, help="the envelope's kind (default: chat)")
    parser.add_argument("--json", action="store_true", help="the text is the payload, as JSON")
    parser.add_argument("--context", metavar="ID", help="send it in this context")
    parser.add_argument("--type", help="the context's type")
    parser.add_argument("--parent", metavar="ID", help="the context's parent")
    parser.add_argument("--answers", metavar="ID", help="the id of the envelope that it answers")
    parser.add_argument(
        "--attach",
        action="append",
        default=[],
        metavar="FILE",
        help="upload a file and name it in the envelope; repeatable",
    )
    parser.add_argument(
        "--wait",
        type=options.seconds,
        metavar="SECONDS",
        help="wait up to this long for an answer and print it",
    )
    options.add_name(parser)
    options.add_arguments(parser)
    arguments = parser.parse_args(argv)
    if arguments.context is None and (arguments.type or arguments.parent):
        parser.error("--type and --parent describe a --context")
    is_request = mcpp.Kind.parse(arguments.kind).family == kinds.REQUEST
    if is_request and not arguments.json:
        parser.error("a request's payload is JSON: add --json")
    return arguments


def _read_standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode().rstrip("\n")
    except UnicodeDecodeError as error:
        raise mcpp.McppError(f"standard input is not valid UTF-8: {error}") from None


def _decode_json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise mcpp.McppError(f"the payload is not JSON: {error}") from None
