"""`mcpp memory`: store, search and serve memories.

Packages of an extra are imported only by the subcommands that need them, so `--help` and search by
words work in the base installation.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from mcpp.cli.extras import importing
from mcpp_agents.cli.display import clean, json_document, json_line
from mcpp_agents.cli.log_format import log_to_terminal
from mcpp_agents.memory.command_parser import parse
from mcpp_agents.memory.errors import MemoryStoreError
from mcpp_agents.memory.pack import ContextPack
from mcpp_agents.memory.packing.plan import SynthesisPlan
from mcpp_agents.memory.requests import to_iso
from mcpp_agents.memory.storage.postgres.address import is_database
from mcpp_agents.memory.store import MemoryStore

# A command ends before the background thread gets to work, so it embeds a few items itself.
_EMBEDDED_AT_ONCE: Final = 64


def main(argv: Sequence[str]) -> int:
    """Run a subcommand and return its exit code."""
    options = parse(argv)
    log_to_terminal("memory")
    _COMMANDS[options.command](options)
    return 0


def open_location(
    location: str, embedder: str = "auto", *, must_exist: bool = False
) -> MemoryStore:
    """Open a memory file or, if the location is an address of one, a database.

    A file that a command may write is created with its folder. For one that only reads or erases it
    must exist: a mistyped name must not create a file.
    """
    if not is_database(location):
        file = Path(location)
        if not must_exist:
            _create_folder(file)
        elif not file.exists():
            raise MemoryStoreError(f"{file} does not exist; `mcpp memory remember` creates it")
    return MemoryStore.open(location, embedder=embedder)


def _create_folder(file: Path) -> None:
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise MemoryStoreError(f"Cannot create the folder of {file}: {error}") from error


def _open(options: argparse.Namespace, *, must_exist: bool = False) -> MemoryStore:
    location = str(options.file) if options.database is None else options.database
    return open_location(location, options.embedder, must_exist=must_exist)


def _remember(options: argparse.Namespace) -> None:
    fields = {
        name: getattr(options, name)
        for name in (
            "domain", "project", "agent_id", "source", "url", "valid_at", "idempotency_key",
            "tags", "related_to", "retrieval_keys", "task_ids", "active_task", "metadata",
        )
    }  # fmt: skip
    content = _read_input() if options.content == "-" else options.content
    with _open(options) as store:
        answer = store.remember(options.title, content, options.kind, **fields)
    sys.stdout.write(f"{answer.id}\n")
    if answer.secrets_withheld:
        sys.stderr.write("mcpp memory: text that looks like a secret was replaced\n")


def _read_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise MemoryStoreError(f"standard input is not {error.encoding} text") from error


def _context(options: argparse.Namespace) -> None:
    with _open(options, must_exist=True) as store:
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
            markdown_token_budget=options.markdown_token_budget,
        )
    _print(pack, as_json=options.json)


def _plan(options: argparse.Namespace) -> None:
    with _open(options, must_exist=True) as store:
        store.embed_pending(_EMBEDDED_AT_ONCE)
        plan = store.synthesis_plan(
            options.goal,
            intent=options.intent,
            domain=options.domain,
            project=options.project,
            agent_id=options.agent_id,
            limit=options.limit,
            markdown_token_budget=options.markdown_token_budget,
        )
    _print(plan, as_json=options.json)


def _print(answer: ContextPack | SynthesisPlan, *, as_json: bool) -> None:
    text = json_document(msgspec.json.encode(answer)) if as_json else clean(answer.markdown)
    sys.stdout.write(text.rstrip("\n") + "\n")


def _forget(options: argparse.Namespace) -> None:
    with _open(options, must_exist=True) as store:
        store.forget(options.id)


def _audit(options: argparse.Namespace) -> None:
    with _open(options, must_exist=True) as store:
        for entry in store.audit_entries(min(max(0, options.last), sys.maxsize)):
            who = {"principal": entry.principal, "author": entry.author, "tool": entry.tool}
            line = {"at": to_iso(entry.at), **who, **entry.details}
            sys.stdout.write(json_line(msgspec.json.encode(line)) + "\n")


def _bench(options: argparse.Namespace) -> None:
    from mcpp_agents.memory.evaluation.bench_command import bench

    bench(options)


def _copy(options: argparse.Namespace) -> None:
    with importing("postgres"):
        from mcpp_agents.memory.storage.postgres.copying import copy_file

    report = copy_file(options.source, options.target, progress=sys.stderr.write)
    sys.stdout.write(f"{report}\n")


def _serve_mcp(options: argparse.Namespace) -> None:
    with importing("memory"):
        from mcpp_agents.memory.serving.serve_command import serve_http, serve_stdio

    if options.http is None:
        with _open(options) as store:
            serve_stdio(store)
    else:
        serve_http(lambda: _open(options), options.principals, *options.http)


def _join_pod(options: argparse.Namespace) -> None:
    from mcpp_agents.memory.bus.join_command import join, make_summarizer

    summarizer = make_summarizer(options)
    with _open(options) as store:
        join(store, options, summarizer)


_COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], None]]] = {
    "serve": _serve_mcp,
    "join": _join_pod,
    "remember": _remember,
    "context": _context,
    "plan": _plan,
    "bench": _bench,
    "copy": _copy,
    "forget": _forget,
    "audit": _audit,
}
