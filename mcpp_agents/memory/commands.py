"""`mcpp memory`: the command line of the memory store.

Modules that need an extra are imported inside the functions that use them, so `--help` and search
by words work in the base installation.
"""

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from mcpp_agents.memory.errors import MemoryStoreError
from mcpp_agents.memory.requests import to_iso
from mcpp_agents.memory.search.embedding import NAMES
from mcpp_agents.memory.serving.credentials import Credentials
from mcpp_agents.memory.store import MemoryStore
from mcpp_agents.memory.vocabulary import INTENTS, LAYERS

if TYPE_CHECKING:
    from mcpp_agents.memory.bus.summarizer import Summarizer

# A command ends before the background thread gets to work, so it embeds a few items itself.
_EMBEDDED_AT_ONCE = 64
_MAX_PORT = 65_535
_DEFAULT_FILE = Path(".mcpp") / "memory.db"


def main(argv: Sequence[str]) -> int:
    """Run a command and return its exit code: 0, 1 for a refusal, 2 for wrong usage."""
    options = _parser().parse_args(argv)
    try:
        code: int = options.run(options)
    except MemoryStoreError as error:
        sys.stderr.write(f"mcpp memory: {error}\n")
        return 2 if isinstance(error, _UsageError) else 1
    return code


class _UsageError(MemoryStoreError):
    """The options are invalid."""


# The parser


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcpp memory", description="Store memories and compile context packs for agents."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    file = argparse.ArgumentParser(add_help=False)
    file.add_argument(
        "--file",
        type=Path,
        default=Path(os.environ.get("MCPP_MEMORY", _DEFAULT_FILE)),
        help="the memory file (default: $MCPP_MEMORY or .mcpp/memory.db)",
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
    forget = commands.add_parser("forget", parents=[file], help="erase a memory")
    forget.add_argument("id", help="the id printed by `remember`")
    forget.set_defaults(run=_forget)
    audit = commands.add_parser("audit", parents=[file], help="show the latest audit entries")
    audit.add_argument("--last", type=int, default=20, help="number of entries (default: 20)")
    audit.set_defaults(run=_audit)
    return parser


def _add_serve(commands: Any, search: argparse.ArgumentParser) -> None:
    serve = commands.add_parser("serve", parents=[search], help="run an MCP server")
    serve.add_argument("--http", metavar="HOST:PORT", help="serve over HTTP instead of stdio")
    serve.add_argument(
        "--principals", type=Path, help="TOML file with the tokens and principals for HTTP"
    )
    serve.set_defaults(run=_serve)


def _add_join(commands: Any, search: argparse.ArgumentParser) -> None:
    join = commands.add_parser("join", parents=[search], help="join a pod as its memory")
    join.add_argument("--name", default="memory", help="participant name (default: memory)")
    join.add_argument(
        "--url",
        default=os.environ.get("MCPP_URL"),
        help="address of the pod (default: $MCPP_URL, or a pod on this machine)",
    )
    join.add_argument(
        "--token",
        default=os.environ.get("MCPP_TOKEN"),
        help="token to join with (default: $MCPP_TOKEN)",
    )
    join.add_argument(
        "--grant",
        action="append",
        default=[],
        metavar="PROJECT",
        help="a project that the pod may use besides its own; may be repeated",
    )
    join.add_argument(
        "--no-listen", action="store_true", help="serve the tools, but record nothing from the pod"
    )
    join.add_argument(
        "--model",
        metavar="API:MODEL",
        help="let a model write the summaries: openai:… or anthropic:…",
    )
    join.add_argument("--base-url", metavar="URL", help="another server with the same API")
    join.set_defaults(run=_join)


def _add_remember(commands: Any, file: argparse.ArgumentParser) -> None:
    remember = commands.add_parser("remember", parents=[file], help="store a memory")
    remember.add_argument("title", help="one line that identifies it")
    remember.add_argument("content", help="its text, or - to read standard input")
    remember.add_argument(
        "--kind", default="note", help="decision, gotcha, plan, task, … (default: note)"
    )
    for name, description in (
        ("domain", "its category"),
        ("project", "the project to share it with; private if omitted"),
        ("agent-id", "the agent whose diary it belongs to"),
        ("source", "where it comes from"),
        ("url", "address of the source"),
        ("valid-at", "when it became true, ISO 8601"),
        ("idempotency-key", "a repeated key stores only once"),
    ):
        remember.add_argument(f"--{name}", help=description)
    for option, field, metavar, description in (
        ("--tag", "tags", "TAG", "a label; may be repeated"),
        (
            "--related-to",
            "related_to",
            "[TYPE:]ID",
            "a memory, as in supersedes:mem_…; repeatable",
        ),
        ("--key", "retrieval_keys", "KEY", "an additional word to find it by; may be repeated"),
    ):
        remember.add_argument(
            option, dest=field, action="append", default=[], metavar=metavar, help=description
        )
    remember.set_defaults(run=_remember)


def _add_context(commands: Any, search: argparse.ArgumentParser) -> None:
    context = commands.add_parser("context", parents=[search], help="compile a context pack")
    context.add_argument("goal", help="what you are about to do")
    context.add_argument(
        "--intent", choices=INTENTS, default="build", help="what to stress (default: build)"
    )
    context.add_argument(
        "--layer",
        choices=tuple(LAYERS),
        default="recall",
        help="depth of the search (default: recall)",
    )
    context.add_argument("--domain", help="only this category")
    context.add_argument("--project", help="only this project, besides private items")
    context.add_argument("--agent-id", help="include the diary of this agent")
    context.add_argument(
        "--limit", type=int, default=24, help="maximum number of items, 1 to 50 (default: 24)"
    )
    context.add_argument(
        "--no-related",
        dest="include_related",
        action="store_false",
        help="leave out items one relation away",
    )
    context.add_argument(
        "--related-limit", type=int, default=3, help="related items per item (default: 3)"
    )
    context.add_argument("--json", action="store_true", help="print the pack as JSON")
    context.set_defaults(run=_context)


# The commands


def _open(options: argparse.Namespace) -> MemoryStore:
    file: Path = options.file
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return MemoryStore.open(file, embedder=options.embedder)


def _open_existing(options: argparse.Namespace) -> MemoryStore:
    """Open a file that must exist, so that a mistyped name does not create one."""
    if not options.file.exists():
        raise _UsageError(f"{options.file} does not exist; `mcpp memory remember` creates it")
    return _open(options)


def _remember(options: argparse.Namespace) -> int:
    fields = {
        name: getattr(options, name)
        for name in (
            "domain", "project", "agent_id", "source", "url", "valid_at", "idempotency_key",
            "tags", "related_to", "retrieval_keys",
        )
    }  # fmt: skip
    content = _read_input() if options.content == "-" else options.content
    with _open(options) as store:
        answer = store.remember(options.title, content, options.kind, **fields)
    sys.stdout.write(f"{answer.id}\n")
    if answer.secrets_withheld:
        sys.stderr.write("mcpp memory: text that looks like a secret was replaced\n")
    return 0


def _read_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise _UsageError(f"standard input is not {error.encoding} text") from error


def _context(options: argparse.Namespace) -> int:
    with _open_existing(options) as store:
        store.embed_pending(_EMBEDDED_AT_ONCE)
        pack = store.context(
            options.goal,
            intent=options.intent,
            layer=options.layer,
            domain=options.domain,
            project=options.project,
            agent_id=options.agent_id,
            limit=options.limit,
            include_related=options.include_related,
            related_limit=options.related_limit,
        )
    text = (
        msgspec.json.format(msgspec.json.encode(pack)).decode() if options.json else pack.markdown
    )
    sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


def _forget(options: argparse.Namespace) -> int:
    with _open_existing(options) as store:
        store.forget(options.id)
    return 0


def _audit(options: argparse.Namespace) -> int:
    with _open_existing(options) as store:
        for entry in store.audit_entries(max(0, options.last)):
            who = {"principal": entry.principal, "author": entry.author, "tool": entry.tool}
            line = {"at": to_iso(entry.at), **who, **entry.details}
            sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    return 0


def _join(options: argparse.Namespace) -> int:
    from functools import partial

    import anyio

    from mcpp import McppError, connect
    from mcpp_agents.memory.bus.participant import join

    summarizer = _summarizer(options)

    async def run() -> None:
        async def stop_at_signal(scope: anyio.CancelScope) -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for _ in signals:
                    scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop_at_signal, tasks.cancel_scope)
            await join(
                partial(connect, options.url, token=options.token, name=options.name),
                store,
                granted=frozenset(options.grant),
                listening=not options.no_listen,
                summarizer=summarizer,
            )

    with _open(options) as store:
        try:
            anyio.run(run)
        except* McppError as errors:
            raise MemoryStoreError("; ".join(map(str, errors.exceptions))) from errors
    return 0


def _summarizer(options: argparse.Namespace) -> "Summarizer | None":
    if options.model is None:
        return None
    from mcpp import McppError

    try:
        from mcpp_agents.memory.bus.summarizer import Summarizer
        from mcpp_agents.model.providers import make_provider

        provider = make_provider(options.model, options.base_url)
    except ModuleNotFoundError as error:
        raise _missing("--model", error, "agent") from error
    except McppError as error:
        raise MemoryStoreError(str(error)) from error
    return Summarizer(provider, name=options.model)


def _serve(options: argparse.Namespace) -> int:
    try:
        import anyio
        import uvicorn

        from mcpp_agents.memory.serving import mcp_server
    except ModuleNotFoundError as error:
        raise _missing("`mcpp memory serve`", error, "memory") from error
    if options.http is None:
        # Nothing else stops a thread that reads standard input, and a kill loses nothing (M-40).
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with _open(options) as store:
            anyio.run(mcp_server.serve_stdio, store)
        return 0
    if options.principals is None:
        raise _UsageError("--http needs --principals FILE, which lists the tokens")
    credentials = Credentials.read(options.principals)
    with _listen(options.http) as listener, _open(options) as store:
        host, port = listener.getsockname()[:2]
        app = mcp_server.http_app(store, credentials, host=host)
        sys.stderr.write(f"memory: http://{f'[{host}]' if ':' in host else host}:{port}/mcp\n")
        with suppress(KeyboardInterrupt):  # raised after uvicorn has shut down
            uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
    return 0


def _missing(feature: str, error: ModuleNotFoundError, extra: str) -> MemoryStoreError:
    install = f"pip install 'mcpp-pods[{extra}]'"
    return MemoryStoreError(f"{feature} needs the package {error.name}: {install}")


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _MAX_PORT:
        raise _UsageError(f"--http must be HOST:PORT, not {address!r}")
    host = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family)
    except (OSError, UnicodeError) as error:
        raise _UsageError(f"Cannot listen on {address}: {error}") from error
