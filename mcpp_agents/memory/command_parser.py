"""The command line of `mcpp memory`: its subcommands and their options."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from mcpp_agents.cli import options
from mcpp_agents.memory.bus.summaries.rolling import RollingPolicy
from mcpp_agents.memory.errors import MemoryStoreError
from mcpp_agents.memory.requests import DEFAULT_TOKEN_BUDGET, MIN_TOKEN_BUDGET
from mcpp_agents.memory.search.embedding import NAMES
from mcpp_agents.memory.storage.postgres.address import is_database
from mcpp_agents.memory.vocabulary import DEFAULT_KIND, INTENTS, LAYERS

DEFAULT_FILE: Final = Path(os.environ.get("MCPP_MEMORY", Path(".mcpp") / "memory.db"))
# The address with a password belongs here rather than on the command line, which others can read.
_DATABASE_VARIABLE: Final = "MCPP_MEMORY_DATABASE"
# Without the text, which may contain a password.
_NOT_A_DATABASE: Final = "must be postgresql://USER@HOST/DATABASE"
_MAX_PORT: Final = 65_535
_ROLLING: Final = RollingPolicy()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options; `command` is the name of the subcommand."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if "database" in arguments and arguments.file is None and arguments.database is None:
        arguments.database = os.environ.get(_DATABASE_VARIABLE) or None
        if arguments.database is not None and not is_database(arguments.database):
            parser.error(f"{_DATABASE_VARIABLE} {_NOT_A_DATABASE}")
    if "database" in arguments and arguments.file is None:
        arguments.file = DEFAULT_FILE
    if arguments.command == "serve" and arguments.http and arguments.principals is None:
        parser.error("--http needs --principals FILE, which lists the tokens")
    if arguments.command == "serve" and arguments.principals and not arguments.http:
        parser.error("--principals needs --http: over stdio, the client is the file's owner")
    return arguments


def default_location() -> str:
    """Return the database in the environment or, without one, the default file.

    Raises MemoryStoreError if the variable is no address of a database.
    """
    location = os.environ.get(_DATABASE_VARIABLE)
    if location and not is_database(location):
        raise MemoryStoreError(f"{_DATABASE_VARIABLE} {_NOT_A_DATABASE}")
    return location or str(DEFAULT_FILE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcpp memory", description="Store memories and compile context packs for agents."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    file = argparse.ArgumentParser(add_help=False)
    place = file.add_mutually_exclusive_group()
    place.add_argument(
        "--file",
        type=_file,
        help="the memory file (default: $MCPP_MEMORY or .mcpp/memory.db)",
    )
    place.add_argument(
        "--database",
        type=_database,
        metavar="URL",
        help="a PostgreSQL database instead of a file: postgresql://…"
        f" (default: ${_DATABASE_VARIABLE})",
    )
    # Commands that do not search leave embedding to the next process that has an embedder.
    file.set_defaults(embedder="none")
    search = argparse.ArgumentParser(add_help=False, parents=[file])
    search.add_argument(
        "--embedder",
        choices=NAMES,
        default="auto",
        help="the model for search by meaning (default: the best one installed)",
    )
    _add_serve(commands, search)
    _add_join(commands, search)
    _add_remember(commands, file)
    _add_context(commands, search)
    _add_plan(commands, search)
    _add_bench(commands)
    _add_copy(commands)
    forget = commands.add_parser("forget", parents=[file], help="erase a memory")
    forget.add_argument("id", help="the id printed by `remember`")
    audit = commands.add_parser("audit", parents=[file], help="show the latest audit entries")
    audit.add_argument("--last", type=int, default=20, help="number of entries (default: 20)")
    return parser


def _add_serve(commands: Any, search: argparse.ArgumentParser) -> None:
    serve = commands.add_parser("serve", parents=[search], help="run an MCP server")
    serve.add_argument(
        "--http", type=_host_and_port, metavar="HOST:PORT", help="serve over HTTP instead of stdio"
    )
    serve.add_argument(
        "--principals", type=Path, help="TOML file with the tokens and principals for HTTP"
    )


def _add_join(commands: Any, search: argparse.ArgumentParser) -> None:
    join = commands.add_parser("join", parents=[search], help="join a pod as its memory")
    options.add_name(join, default="memory")
    join.add_argument(
        "--grant",
        action="append",
        default=[],
        metavar="PROJECT",
        help="a further project that the pod may use; may be repeated",
    )
    join.add_argument(
        "--no-listen", action="store_true", help="serve the tools, but record nothing from the pod"
    )
    join.add_argument(
        "--model",
        metavar="API:MODEL",
        help="let a model write the summaries: openai:… or anthropic:…",
    )
    join.add_argument(
        "--base-url",
        type=options.web_address,
        metavar="URL",
        help="the address of another server that implements the API",
    )
    join.add_argument(
        "--no-rolling", action="store_true", help="do not summarize contexts that are still open"
    )
    for option, default, unit in (
        ("--rolling-messages", _ROLLING.messages, "messages"),
        ("--rolling-chars", _ROLLING.chars, "characters"),
    ):
        join.add_argument(
            option,
            type=options.positive,
            default=default,
            metavar="N",
            help=f"summarize an open context after so many {unit} (default: {default})",
        )
    options.add_arguments(join)


def _add_remember(commands: Any, file: argparse.ArgumentParser) -> None:
    remember = commands.add_parser("remember", parents=[file], help="store a memory")
    remember.add_argument("title", help="one line that identifies it")
    remember.add_argument("content", help="its text, or - to read standard input")
    remember.add_argument(
        "--kind",
        default=DEFAULT_KIND,
        help=f"decision, gotcha, plan, task, … (default: {DEFAULT_KIND})",
    )
    for name, description in (
        ("domain", "its category"),
        ("project", "the project to share it with; private if omitted"),
        ("agent-id", "the agent whose diary it belongs to"),
        ("source", "where it comes from"),
        ("url", "address of the source"),
        ("valid-at", "when it became true, ISO 8601"),
        ("idempotency-key", "a repeated key stores only once"),
        ("active-task", "the task during which it was learned"),
    ):
        remember.add_argument(f"--{name}", help=description)
    remember.add_argument(
        "--metadata", type=_json_object, default={}, metavar="JSON", help="further facts, an object"
    )
    for option, field, metavar, description in (
        ("--tag", "tags", "TAG", "a label; may be repeated"),
        (
            "--related-to",
            "related_to",
            "[TYPE:]ID",
            "a memory, as in supersedes:mem_…; repeatable",
        ),
        ("--task", "task_ids", "ID", "a task that it belongs to; may be repeated"),
        ("--key", "retrieval_keys", "KEY", "an additional word to find it by; may be repeated"),
    ):
        remember.add_argument(
            option, dest=field, action="append", default=[], metavar=metavar, help=description
        )


def _json_object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"not a JSON object: {error}") from None


def _add_plan(commands: Any, search: argparse.ArgumentParser) -> None:
    plan = commands.add_parser(
        "plan", parents=[search], help="outline an artifact from what is remembered"
    )
    plan.add_argument("goal", help="what the artifact is about")
    plan.add_argument(
        "--intent",
        choices=INTENTS,
        default="research",
        help="which kinds of items are expected (default: research)",
    )
    plan.add_argument("--domain", help="only this category")
    plan.add_argument("--project", help="only this project and private items")
    plan.add_argument("--agent-id", help="include this agent's diary")
    plan.add_argument(
        "--limit", type=int, default=40, help="maximum number of items, 1 to 50 (default: 40)"
    )
    _add_tokens(plan)
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")


def _add_bench(commands: Any) -> None:
    bench = commands.add_parser("bench", help="measure the quality of retrieval")
    bench.add_argument(
        "--conversations",
        type=int,
        default=6,
        metavar="N",
        help="made-up conversations, about 70 questions each; 0 for none (default: 6)",
    )
    bench.add_argument("--seed", type=int, default=1, help="which conversations (default: 1)")
    bench.add_argument("--cranfield", type=Path, metavar="FOLDER", help="Cranfield's files")
    bench.add_argument("--locomo", type=Path, metavar="FILE", help="a file in LoCoMo's format")
    bench.add_argument(
        "--dialogues", type=Path, metavar="FILE", help="dialogues and questions as plain text"
    )
    bench.add_argument(
        "--embedders", metavar="NAMES", help="comma-separated, or `none` (default: all installed)"
    )


def _add_copy(commands: Any) -> None:
    copy = commands.add_parser("copy", help="copy a memory file into a PostgreSQL database")
    copy.add_argument("source", type=Path, metavar="SQLITE", help="the memory file")
    copy.add_argument(
        "target", type=_database, metavar="POSTGRES", help="the database: postgresql://…"
    )


def _add_tokens(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--tokens",
        dest="markdown_token_budget",
        type=int,
        default=DEFAULT_TOKEN_BUDGET,
        help=f"maximum tokens of the Markdown, at least {MIN_TOKEN_BUDGET}"
        f" (default: {DEFAULT_TOKEN_BUDGET})",
    )


def _add_context(commands: Any, search: argparse.ArgumentParser) -> None:
    context = commands.add_parser("context", parents=[search], help="compile a context pack")
    context.add_argument("goal", help="what you are about to do")
    context.add_argument(
        "--intent",
        choices=INTENTS,
        default="build",
        help="your purpose: which kinds of items rank higher (default: build)",
    )
    context.add_argument(
        "--layer",
        choices=tuple(LAYERS),
        default="recall",
        help="depth of the search (default: recall)",
    )
    context.add_argument("--domain", help="only this category")
    context.add_argument("--project", help="only this project and private items")
    context.add_argument("--agent-id", help="include this agent's diary")
    context.add_argument(
        "--limit", type=int, default=24, help="maximum number of items, 1 to 50 (default: 24)"
    )
    context.add_argument(
        "--no-related",
        dest="include_related",
        action="store_false",
        help="leave out related items",
    )
    context.add_argument(
        "--related-limit", type=int, default=3, help="related items per item (default: 3)"
    )
    _add_tokens(context)
    context.add_argument("--json", action="store_true", help="print the pack as JSON")


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _MAX_PORT:
        raise argparse.ArgumentTypeError(f"must be HOST:PORT, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _file(text: str) -> Path:
    if is_database(text):  # a folder of that name would show its password
        raise argparse.ArgumentTypeError("must be a file; use --database for a database")
    return Path(text)


def _database(text: str) -> str:
    if not is_database(text):
        raise argparse.ArgumentTypeError(_NOT_A_DATABASE)
    return text
