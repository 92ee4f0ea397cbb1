"""`mcpp memory`: the command line of memory."""

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from mcpp_agents.memory.errors import MemoryFault
from mcpp_agents.memory.requests import moment_of
from mcpp_agents.memory.search.embedding import NAMES
from mcpp_agents.memory.serving.credentials import Credentials
from mcpp_agents.memory.store import MemoryStore
from mcpp_agents.memory.vocabulary import INTENTS, LAYERS

if TYPE_CHECKING:
    from mcpp_agents.memory.bus.summarizer import Summarizer

# A command is over before the background has begun: it embeds what it can in a moment.
_EMBEDDED_AT_ONCE = 64
_MAX_PORT = 65_535
_DEFAULT_FILE = Path(".mcpp") / "memory.db"


def main(argv: Sequence[str]) -> int:
    """Remember, recall and serve context packs.

    Returns the exit code: 0, 1 where the store refuses, 2 for wrong usage.
    """
    options = _parser().parse_args(argv)
    try:
        code: int = options.run(options)
    except MemoryFault as fault:
        sys.stderr.write(f"mcpp memory: {fault}\n")
        return 2 if isinstance(fault, _WrongUsage) else 1
    return code


class _WrongUsage(MemoryFault):
    """An option that cannot be followed."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mcpp memory", description="Context packs for agents.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    place = argparse.ArgumentParser(add_help=False)
    place.add_argument(
        "--file",
        type=Path,
        default=Path(os.environ.get("MCPP_MEMORY", _DEFAULT_FILE)),
        help="the memory file (default: $MCPP_MEMORY or .mcpp/memory.db)",
    )
    # What finds nothing needs no embedder: a vector can wait for the next one who has it.
    place.set_defaults(embedder="none")
    shared = argparse.ArgumentParser(add_help=False, parents=[place])
    shared.add_argument("--embedder", choices=NAMES, default="auto",
                        help="what finds by meaning (default: the best installed)")  # fmt: skip

    serve = commands.add_parser("serve", parents=[shared], help="be an MCP server")
    serve.add_argument("--http", metavar="HOST:PORT", help="over HTTP instead of stdio")
    serve.add_argument("--principals", type=Path, help="who may use it over HTTP (TOML)")
    serve.set_defaults(run=_serve)

    join = commands.add_parser("join", parents=[shared], help="be a pod's memory")
    join.add_argument("--name", default="memory", help="who to be in the pod (default: memory)")
    join.add_argument("--url", default=os.environ.get("MCPP_URL"),
                      help="the pod's address (default: $MCPP_URL, or one here)")  # fmt: skip
    join.add_argument("--token", default=os.environ.get("MCPP_TOKEN"),
                      help="the token to join with (default: $MCPP_TOKEN)")  # fmt: skip
    join.add_argument("--grant", action="append", default=[], metavar="PROJECT",
                      help="a project that the pod may use beside its own")  # fmt: skip
    join.add_argument("--no-listen", action="store_true", help="serve the tools, overhear nothing")
    join.add_argument("--model", metavar="API:MODEL",
                      help="have openai:… or anthropic:… write the summaries")  # fmt: skip
    join.add_argument("--base-url", metavar="URL", help="another address that speaks this API")
    join.set_defaults(run=_join)

    remember = commands.add_parser("remember", parents=[place], help="store a memory")
    remember.add_argument("title", help="one line by which to recognise it")
    remember.add_argument("content", help="its text, or - to read it from standard input")
    remember.add_argument("--kind", default="note",
                          help="decision, gotcha, plan, task, … (default: note)")  # fmt: skip
    for name, says in (
        ("domain", "its category"),
        ("project", "who shares it; else it is private"),
        ("agent-id", "in whose diary it belongs"),
        ("source", "where it comes from"),
        ("url", "the address of the source"),
        ("valid-at", "when it became true, ISO 8601"),
        ("idempotency-key", "the same key stores only once"),
    ):
        remember.add_argument(f"--{name}", help=says)
    remember.add_argument("--tag", dest="tags", action="append", default=[],
                          help="a label; may be repeated, like those below")  # fmt: skip
    remember.add_argument("--related-to", action="append", default=[], metavar="[TYPE:]ID",
                          help="another memory, as in supersedes:mem_…")  # fmt: skip
    remember.add_argument("--key", dest="retrieval_keys", action="append", default=[],
                          help="another word to find it by")  # fmt: skip
    remember.set_defaults(run=_remember)

    context = commands.add_parser("context", parents=[shared], help="compile a pack for a goal")
    context.add_argument("goal", help="what you are about to do")
    context.add_argument("--intent", choices=INTENTS, default="build",
                         help="what to stress (default: build)")  # fmt: skip
    context.add_argument("--layer", choices=tuple(LAYERS), default="recall",
                         help="how deep to look (default: recall)")  # fmt: skip
    context.add_argument("--domain", help="only this category")
    context.add_argument("--project", help="only this project, beside private items")
    context.add_argument("--agent-id", help="with this agent's diary")
    context.add_argument("--limit", type=int, default=24,
                         help="most items in all, 1 to 50 (default: 24)")  # fmt: skip
    context.add_argument("--no-related", dest="include_related", action="store_false",
                         help="without items one relation away")  # fmt: skip
    context.add_argument("--related-limit", type=int, default=3, help="of these, for each item")
    context.add_argument("--json", action="store_true", help="the whole pack, not its Markdown")
    context.set_defaults(run=_context)

    forget = commands.add_parser("forget", parents=[place], help="erase a memory")
    forget.add_argument("id", help="as `remember` printed it")
    forget.set_defaults(run=_forget)

    audit = commands.add_parser("audit", parents=[place], help="show the latest calls")
    audit.add_argument("--last", type=int, default=20, help="how many (default: 20)")
    audit.set_defaults(run=_audit)
    return parser


def _open(options: argparse.Namespace) -> MemoryStore:
    file: Path = options.file
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return MemoryStore.open(file, embedder=options.embedder)


def _open_existing(options: argparse.Namespace) -> MemoryStore:
    """For what makes nothing: a name that was mistyped must not become a file."""
    if not options.file.exists():
        raise _WrongUsage(f"there is no {options.file}; `mcpp memory remember` would make it")
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
        sys.stderr.write("mcpp memory: what looks like a secret in it is withheld\n")
    return 0


def _read_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise _WrongUsage(f"standard input is not {error.encoding} text") from error


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
        for entry in store.audited(max(0, options.last)):
            who = {"principal": entry.principal, "author": entry.author, "tool": entry.tool}
            line = {"at": moment_of(entry.at), **who, **entry.details}
            sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    return 0


def _join(options: argparse.Namespace) -> int:
    from functools import partial

    import anyio

    from mcpp import McppError, connect
    from mcpp_agents.memory.bus.participant import join

    narrator = _narrator(options)

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
                narrator=narrator,
            )

    with _open(options) as store:
        try:
            anyio.run(run)
        except* McppError as errors:
            raise MemoryFault("; ".join(map(str, errors.exceptions))) from errors
    return 0


def _narrator(options: argparse.Namespace) -> "Summarizer | None":
    if options.model is None:
        return None
    from mcpp import McppError

    try:
        from mcpp_agents.memory.bus.summarizer import Summarizer
        from mcpp_agents.model.providers import make_provider

        provider = make_provider(options.model, options.base_url)
    except ModuleNotFoundError as error:
        raise MemoryFault(f"--model needs {error.name}: pip install 'mcpp[agents]'") from error
    except McppError as error:
        raise MemoryFault(str(error)) from error
    return Summarizer(provider, name=options.model)


def _serve(options: argparse.Namespace) -> int:
    try:
        import anyio

        from mcpp_agents.memory.serving import mcp_server
    except ModuleNotFoundError as error:
        raise MemoryFault(f"serving needs {error.name}: pip install 'mcpp[memory]'") from error
    if options.http is None:
        # Nothing else ends a thread that reads standard input, and a kill loses nothing (M-40).
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        with _open(options) as store:
            anyio.run(mcp_server.serve_stdio, store)
        return 0
    if options.principals is None:
        raise _WrongUsage("--http needs --principals FILE: who may use it, by which token")
    import uvicorn

    credentials = Credentials.read(options.principals)
    with _listen(options.http) as listening, _open(options) as store:
        host, port = listening.getsockname()[:2]
        app = mcp_server.http_app(store, credentials, host=host)
        sys.stderr.write(f"memory: http://{f'[{host}]' if ':' in host else host}:{port}/mcp\n")
        with suppress(KeyboardInterrupt):  # which comes after it has closed everything
            uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
    return 0


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _MAX_PORT:
        raise _WrongUsage(f"--http is HOST:PORT, not {address!r}")
    host = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family)
    except (OSError, UnicodeError) as error:
        raise _WrongUsage(f"Cannot listen on {address}: {error}") from error
