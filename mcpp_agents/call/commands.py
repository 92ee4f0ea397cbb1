"""`mcpp call`: call a participant's tool, and print its result."""

import argparse
import sys
from typing import Any, Final

import anyio
import msgspec

import mcpp
from mcpp_agents.cli import options
from mcpp_agents.cli.display import clean, json_document, one_line

_LIST_SECONDS: Final = 5.0
_MAX_PAGES: Final = 20


def main(argv: list[str]) -> int:
    """Call a tool; print the result, and exit with 1 if it is an error."""
    arguments = _read_arguments(argv)

    async def run() -> int:
        address = options.address_of_person(arguments, arguments.name)
        nothing = mcpp.filters.parse({"any": []})
        async with mcpp.connect(address, name=arguments.name, filter=nothing) as pod:
            try:
                return await _call(pod, arguments)
            except mcpp.CallError as error:
                # Raised after the block, which sees to it that a cancellation is sent.
                failure = error
        raise failure

    return anyio.run(run)


async def _call(pod: mcpp.Pod, arguments: argparse.Namespace) -> int:
    target, tool = arguments.target, arguments.tool
    values = await _values(pod, arguments)
    try:
        result = await pod.call(
            target,
            tool,
            values,
            timeout=arguments.timeout,
            wait_for_presence=arguments.wait,
            context=arguments.context,
            on_progress=_show_progress,
        )
    except mcpp.ToolError as error:
        if not arguments.json:
            raise
        _print_json(error.result)
        return 1
    if arguments.json:
        _print_json(result)
    else:
        text = result.text or ("" if result.structured is None else _as_json(result.structured))
        others = sum(part.get("type") != "text" for part in result.content)
        sys.stdout.write(clean(text) + "\n" if text else "")
        if others:
            sys.stderr.write(f"mcpp call: {others} parts that are no text; --json prints them\n")
    return 0


def _read_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="mcpp call",
        description="Call a participant's tool and print its result. Progress is shown on standard "
        "error. Exits with 1 if the call fails.",
        epilog="A VALUE is JSON where that is possible and the tool does not ask for a text: "
        "limit=5, tags='[\"a\"]', name=Ada. All arguments may be one JSON object instead.",
    )
    parser.add_argument("target", metavar="TARGET", help="the participant that offers the tool")
    parser.add_argument("tool", metavar="TOOL", help="the tool's name")
    parser.add_argument(
        "arguments",
        nargs="*",
        default=[],  # without it, argparse calls them required
        metavar="KEY=VALUE",
        help="arguments, or one JSON object",
    )
    parser.add_argument("--json", action="store_true", help="print the whole result as JSON")
    parser.add_argument("--context", metavar="ID", help="call it in this context")
    parser.add_argument(
        "--timeout",
        type=options.seconds,
        default=60.0,
        metavar="SECONDS",
        help="wait up to this long for the result (default: 60)",
    )
    parser.add_argument(
        "--wait",
        type=options.seconds,
        default=0.1,
        metavar="SECONDS",
        help="wait up to this long for the participant to join",
    )
    options.add_name(parser)
    options.add_arguments(parser)
    return parser.parse_args(argv)


async def _values(pod: mcpp.Pod, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments as JSON values. Raises McppError for one that is not KEY=VALUE."""
    given: list[str] = arguments.arguments
    if len(given) == 1 and given[0].lstrip().startswith("{"):
        try:
            return msgspec.json.decode(given[0], type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise mcpp.McppError(f"the arguments are not a JSON object: {error}") from None
    pairs = {}
    for each in given:
        key, equals, text = each.partition("=")
        if not equals or not key:
            raise mcpp.McppError(f"{one_line(each, 80)!r} is not KEY=VALUE")
        pairs[key] = text
    texts = await _text_parameters(pod, arguments) if pairs else set()
    return {key: text if key in texts else _value(text) for key, text in pairs.items()}


async def _text_parameters(pod: mcpp.Pod, arguments: argparse.Namespace) -> set[str]:
    """Return the parameters of a tool that are texts, as far as its participant says."""
    params: dict[str, Any] = {}
    for _ in range(_MAX_PAGES):
        try:
            page = await pod.request(
                arguments.target,
                "tools/list",
                params,
                timeout=_LIST_SECONDS,
                wait_for_presence=arguments.wait,
            )
        except mcpp.CallError:
            return set()
        match page:
            case {"tools": list(tools)}:
                schemas = [each for each in tools if isinstance(each, dict)]
            case _:
                return set()
        for each in schemas:
            if each.get("name") == arguments.tool:
                return _texts_in(each.get("inputSchema"))
        if not isinstance(page.get("nextCursor"), str):
            return set()
        params = {"cursor": page["nextCursor"]}
    return set()


def _texts_in(schema: Any) -> set[str]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    known = properties.items() if isinstance(properties, dict) else ()
    return {name for name, each in known if _type_of(each) == "string"}


def _type_of(schema: Any) -> Any:
    return schema.get("type") if isinstance(schema, dict) else None


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _show_progress(progress: mcpp.Progress) -> None:
    of = "" if progress.total is None else f"/{progress.total:g}"
    message = "" if progress.message is None else f" {one_line(progress.message, 200)}"
    sys.stderr.write(f"{progress.progress:g}{of}{message}\n")


def _print_json(result: mcpp.ToolResult) -> None:
    sys.stdout.write(_as_json(result.to_json()) + "\n")


def _as_json(value: Any) -> str:
    return json_document(msgspec.json.encode(value))
