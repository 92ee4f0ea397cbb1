"""`mcpp send`: say one thing in a pod, from a script or a pipe, and perhaps wait for the answer."""

import argparse
import sys
from typing import Any, Final

import anyio
import msgspec

import mcpp
from mcpp import Context, Envelope, Kind, McppError, Pod, kinds
from mcpp.client import factory
from mcpp.errors import NoAnswerError
from mcpp.protocol import rpc
from mcpp_agents.cli import options
from mcpp_agents.cli.display import answer_of, is_failure, progress_of

# For what is said on the way out, however we leave.
_TELL_SECONDS: Final = 1.0


def main(argv: list[str]) -> int:
    """Send one envelope and print its id, or the answer."""
    parser = argparse.ArgumentParser(
        prog="mcpp send",
        description="Say one thing in a pod and print its id. Without a text it reads one from "
        "standard input. With --wait it exits with 1 if the answer is an error.",
        epilog="A tool is called with --kind mcp/request:tools/call:TOOL --to NAME --json "
        '\'{"params": {"arguments": {...}}}\': what a request needs besides (jsonrpc, id, method, '
        "params.name) is filled in.",
    )
    parser.add_argument("text", nargs="*", help="what to say, or with --json the payload")
    parser.add_argument("--to", action="append", metavar="NAME", help="whom it is for")
    parser.add_argument("--kind", default=kinds.CHAT, help="what it is (default: chat)")
    parser.add_argument("--json", action="store_true", help="the text is the payload, as JSON")
    parser.add_argument("--context", metavar="ID", help="say it in this context")
    parser.add_argument("--type", help="the context's type")
    parser.add_argument("--parent", metavar="ID", help="the context above it")
    parser.add_argument("--answers", metavar="ID", help="the envelope that it answers")
    parser.add_argument(
        "--wait",
        type=options.seconds,
        metavar="SECONDS",
        help="wait for an answer, and print that",
    )
    parser.add_argument("--as", dest="name", metavar="NAME", help="join as this participant")
    options.add_arguments(parser)
    arguments = parser.parse_args(argv)
    if arguments.context is None and (arguments.type or arguments.parent):
        parser.error("--type and --parent describe a --context")
    is_request = Kind.parse(arguments.kind).family == kinds.REQUEST
    if is_request and not arguments.json:
        parser.error("a request's payload is JSON: add --json")
    text = " ".join(arguments.text) if arguments.text else _standard_input()
    payload = _json(text) if arguments.json else payload_of(arguments.kind, text)

    async def run() -> tuple[str, int]:
        address = options.address_of_person(arguments, arguments.name)
        async with mcpp.connect(address, name=arguments.name) as pod:
            return await say(pod, payload, arguments)

    printed, code = anyio.run(run)
    sys.stdout.write(printed + "\n")
    return code


async def say(pod: Pod, payload: Any, arguments: argparse.Namespace) -> tuple[str, int]:
    """Send the payload; return its id, or what the first answer to it says, and an exit code."""
    context = None
    if arguments.context is not None:
        context = Context(id=arguments.context, type=arguments.type, parent=arguments.parent)
    id = factory.new_id()
    sent = await pod.send(
        arguments.kind,
        request_of(Kind.parse(arguments.kind), payload, id),
        to=arguments.to,
        correlation_id=arguments.answers,
        context=context,
        id=id,
    )
    if arguments.wait is None:
        return id, 0
    answer: Envelope | None = None
    try:
        with anyio.move_on_after(arguments.wait):
            answer = await _answer(pod, sent)
    finally:
        if answer is None and Kind.parse(sent.kind).family == kinds.REQUEST:
            with anyio.move_on_after(_TELL_SECONDS, shield=True):  # P-18
                params = {"requestId": id, "reason": "nobody waits for it any more"}
                await pod.notify(
                    rpc.CANCELLED, params, to=sent.to, correlation_id=id, context=context
                )
    if answer is None:
        raise NoAnswerError(", ".join(arguments.to or ["the pod"]), arguments.kind, arguments.wait)
    return answer_of(answer), 1 if is_failure(answer) else 0


async def _answer(pod: Pod, sent: Envelope) -> Envelope:
    is_request = Kind.parse(sent.kind).family == kinds.REQUEST
    async for message in pod:
        if message.correlation_id != sent.id:
            continue
        if (progress := progress_of(message.envelope)) is not None:
            if sys.stderr.isatty():
                sys.stderr.write(f"{message.sender}: {progress}\n")
        # P-14: anybody could answer what everybody sees.
        elif not is_request or (
            message.sender in (sent.to or ()) and message.kind.startswith(kinds.RESPONSE)
        ):
            return message.envelope
    raise AssertionError("a pod's messages end with an error")


def request_of(kind: Kind, payload: Any, id: str) -> Any:
    """Return the payload, a request's with what it lacks and its kind and id tell."""
    if kind.family != kinds.REQUEST or not isinstance(payload, dict):
        return payload
    params = payload.get("params", {})
    if kind.name is not None and isinstance(params, dict):
        params = {"name": kind.name} | params
    return rpc.request(id, kind.method or "", {}) | payload | {"params": params}


def payload_of(kind: str, text: str) -> dict[str, str]:
    """Return a text as the payload of a kind."""
    return {"thought": text} if kind == kinds.REFLECTION else {"text": text}


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode().rstrip("\n")
    except UnicodeDecodeError as error:
        raise McppError(f"standard input is no UTF-8 text: {error}") from None


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise McppError(f"the payload is not JSON: {error}") from None
