"""`mcpp send`: say one thing in a pod, from a script or a pipe, and perhaps wait for the answer."""

import argparse
import sys
from typing import Any

import anyio
import msgspec

import mcpp
from mcpp import Context, McppError, Pod, kinds
from mcpp.errors import NoAnswerError
from mcpp_agents import joining
from mcpp_agents.display import answer_of, progress_of


def main(argv: list[str]) -> int:
    """Send one envelope and print its id, or the answer."""
    parser = argparse.ArgumentParser(
        prog="mcpp send",
        description="Say one thing in a pod and print its id. Without a text it reads one from "
        "standard input.",
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
        "--wait", type=joining.seconds, metavar="SECONDS", help="wait for an answer, and print that"
    )
    parser.add_argument("--as", dest="name", metavar="NAME", help="join as this participant")
    joining.add_arguments(parser)
    arguments = parser.parse_args(argv)
    if arguments.context is None and (arguments.type or arguments.parent):
        parser.error("--type and --parent describe a --context")
    text = " ".join(arguments.text) if arguments.text else _standard_input()
    payload = _json(text) if arguments.json else payload_of(arguments.kind, text)

    async def run() -> str:
        address = joining.address_of_person(arguments, arguments.name)
        async with mcpp.connect(address, name=arguments.name) as pod:
            return await say(pod, payload, arguments)

    sys.stdout.write(anyio.run(run) + "\n")
    return 0


async def say(pod: Pod, payload: Any, arguments: argparse.Namespace) -> str:
    """Send the payload and return its id, or what the first answer to it says."""
    context = None
    if arguments.context is not None:
        context = Context(id=arguments.context, type=arguments.type, parent=arguments.parent)
    sent = await pod.send(
        arguments.kind,
        payload,
        to=arguments.to,
        correlation_id=arguments.answers,
        context=context,
    )
    if arguments.wait is None:
        return sent.id
    with anyio.move_on_after(arguments.wait):
        async for message in pod:
            if message.correlation_id != sent.id:
                continue
            if (progress := progress_of(message.envelope)) is None:
                return answer_of(message.envelope)
            if sys.stderr.isatty():
                sys.stderr.write(f"{message.sender}: {progress}\n")
    raise NoAnswerError(", ".join(arguments.to or ["the pod"]), arguments.kind, arguments.wait)


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
