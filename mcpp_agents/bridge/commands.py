"""`mcpp bridge`: add an MCP server or a coding agent to a pod as a participant."""

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import anyio

from mcpp import McppError
from mcpp.cli.extras import importing
from mcpp_agents.bridge.server_process import server_environment
from mcpp_agents.cli import options
from mcpp_agents.cli.log_format import log_to_terminal
from mcpp_agents.cli.tracing import trace_by_environment


def main(argv: list[str]) -> int:
    """Run a bridge until Ctrl-C."""
    parser = _parser()
    ours, command = _split(argv)
    arguments = parser.parse_args(ours)
    if bool(command) == bool(arguments.http):
        parser.error("give either `-- COMMAND ...` or `--http URL`")
    if arguments.oauth and not arguments.http:
        parser.error("--oauth is for `--http URL`")
    if arguments.env and arguments.http:
        parser.error("--env is for `-- COMMAND ...`")
    if arguments.acp and (arguments.http or arguments.ask):
        parser.error("--acp is for `-- COMMAND ...`, without --ask")
    for option in ("cwd", "mode", "no_files", "terminal", "no_tools", "approver"):
        if getattr(arguments, option) and not arguments.acp:
            parser.error(f"--{option.replace('_', '-')} is for --acp")
    log_to_terminal("bridge")
    trace_by_environment(arguments.name)
    if arguments.acp:
        return _run_acp(arguments, command)
    headers = _headers(arguments.header)
    with importing("bridge"):
        from mcpp_agents.bridge.agent import run
        from mcpp_agents.bridge.oauth import oauth
        from mcpp_agents.bridge.openers import over_http, over_stdio

    if arguments.http:
        auth = oauth(arguments.http, _show_address) if arguments.oauth else None
        opener = over_http(arguments.http, headers, auth)
    else:
        opener = over_stdio(command, arguments.env)
    address = options.address_of(arguments, arguments.name)
    anyio.run(run, arguments.name, opener, address, arguments.ask)
    return 0


def _run_acp(arguments: argparse.Namespace, command: list[str]) -> int:
    with importing("acp"):
        from mcpp_agents.acp.agent_process import Launch
        from mcpp_agents.acp.participant import AcpSettings, run
        from mcpp_agents.acp.pod_tools import pod_server, tools_token
        from mcpp_agents.acp.sessions import session_file

    name, folder = arguments.name, Path(arguments.cwd or ".").absolute()
    if not folder.is_dir():
        raise McppError(f"{folder} is not a folder")
    try:
        environment = server_environment(arguments.env, os.environ)
    except KeyError as error:
        raise McppError(f"the environment has no {error.args[0]}") from None
    address = options.address_of(arguments, name)
    token = None
    if find_spec("mcp") is None:
        sys.stderr.write("mcpp bridge: without the extra `mcp`, the agent gets no tools\n")
    elif not arguments.no_tools:
        token = tools_token(name, options.environ_of(arguments))
        if token is None:
            sys.stderr.write("mcpp bridge: without MCPP_TOOLS_TOKEN, the agent gets no tools\n")
    launch = Launch(
        command,
        environment,
        folder,
        offers_files=not arguments.no_files,
        offers_terminals=arguments.terminal,
    )
    settings = AcpSettings(
        launch,
        servers=() if token is None else [pod_server(name, address, token)],
        approvers=arguments.approver,
        mode=arguments.mode,
        sessions=session_file(name, address.url, [str(folder), *command]),
    )
    anyio.run(run, name, settings, address)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcpp bridge",
        usage="mcpp bridge [--url URL --token TOKEN] NAME "
        "([--acp] [--env NAME] -- COMMAND ... | --http URL)",
        description="Add an MCP server to a pod, or with --acp a coding agent. Other participants "
        "call the server's tools, read its resources and get its prompts under NAME, or write to "
        "the agent. A server or an agent that ends is started again.",
    )
    parser.add_argument("name", metavar="NAME", help="the participant's name")
    parser.add_argument(
        "--http",
        type=options.web_address,
        metavar="URL",
        help="use a server on streamable HTTP, or on the older transport with SSE",
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME: VALUE",
        help="send this header with every HTTP request; other users can see it in the process list",
    )
    parser.add_argument(
        "--oauth",
        action="store_true",
        help="sign in to the HTTP server with a browser; the tokens are kept for the next start",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help="pass this environment variable to the command, which gets only a few by default",
    )
    parser.add_argument(
        "--ask",
        action="append",
        metavar="NAME",
        help="put the server's questions to this participant if the caller cannot answer them; "
        "by default, to those present",
    )
    _add_acp(parser)
    options.add_arguments(parser)
    return parser


def _add_acp(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("coding agents")
    group.add_argument(
        "--acp",
        action="store_true",
        help="the command is a coding agent that speaks the Agent Client Protocol, such as "
        "`opencode acp`",
    )
    group.add_argument("--cwd", metavar="FOLDER", help="the folder in which it works (default: .)")
    group.add_argument(
        "--mode", help="the agent's own mode, such as `plan` or `read-only` (default: its default)"
    )
    group.add_argument(
        "--approver",
        action="append",
        metavar="NAME",
        help="only this participant decides on what the agent asks for; by default, any other",
    )
    group.add_argument(
        "--no-files",
        action="store_true",
        help="do not read and write files of its folder for the agent",
    )
    group.add_argument(
        "--terminal",
        action="store_true",
        help="run programs for the agent; they are not confined to its folder",
    )
    group.add_argument(
        "--no-tools", action="store_true", help="do not hand the pod's tools to the agent"
    )


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in argv:
        return argv, []
    place = argv.index("--")
    return argv[:place], argv[place + 1 :]


def _show_address(url: str) -> None:
    sys.stderr.write(f"mcpp bridge: to sign in, open this address in a browser:\n{url}\n")
    sys.stderr.flush()


def _headers(lines: list[str]) -> dict[str, str]:
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise McppError(f"{line!r} is not a header: write 'Name: value'")
        headers[name.strip()] = value.strip()
    return headers
