"""`mcpp agent`: run a model as a participant of a pod."""

import argparse
from contextlib import nullcontext
from pathlib import Path

import anyio

from mcpp.client import local_pod
from mcpp.client.tasks import until_signal
from mcpp_agents.cli import options
from mcpp_agents.cli.joining import announce_join
from mcpp_agents.cli.log_format import log_to_terminal
from mcpp_agents.cli.tracing import trace_by_environment
from mcpp_agents.memory.command_parser import default_location
from mcpp_agents.memory.commands import open_location
from mcpp_agents.model.agent import ModelAgent
from mcpp_agents.model.limits import ModelLimits
from mcpp_agents.model.providers import make_provider


def main(argv: list[str]) -> int:
    """Run a model until Ctrl-C."""
    defaults = ModelLimits()
    parser = argparse.ArgumentParser(
        prog="mcpp agent",
        description="Run a model as a participant. It answers messages addressed to it, reasons in "
        "contexts that others can follow, and calls the other participants' tools.",
    )
    parser.add_argument(
        "--model", required=True, metavar="API:MODEL", help="openai:… or anthropic:…"
    )
    parser.add_argument(
        "--base-url",
        type=options.web_address,
        metavar="URL",
        help="the address of another server that implements the API",
    )
    options.add_name(parser, default="model")
    parser.add_argument("--system", type=Path, metavar="FILE", help="instructions for the model")
    for option, default, meaning in (
        ("--max-turns", defaults.turns, "replies per question"),
        ("--max-tokens", defaults.tokens, "tokens per question, as counted by the API"),
        ("--prompt-tokens", defaults.prompt_tokens, "tokens per prompt; older content is dropped"),
        ("--reply-tokens", defaults.reply_tokens, "tokens per reply"),
    ):
        parser.add_argument(
            option,
            type=options.positive,
            default=default,
            metavar="N",
            help=f"the maximum number of {meaning} (default: {default})",
        )
    parser.add_argument(
        "--collapse",
        choices=("always", "cache", "never"),
        default=defaults.collapse,
        help="when consumed tool results are replaced by their summaries: at once, when that is "
        "cheaper with a prompt cache, or only to keep within --prompt-tokens (default: cache)",
    )
    parser.add_argument(
        "--memory",
        nargs="?",
        const="",
        metavar="LOCATION",
        help="recall from a memory before answering, and remember the answers in the agent's diary:"
        " a file or postgresql://… (default: $MCPP_MEMORY_DATABASE, $MCPP_MEMORY or"
        " .mcpp/memory.db)",
    )
    parser.add_argument(
        "--sampling",
        action="store_true",
        help="let MCP servers in the pod use the model, for requests of at most --reply-tokens",
    )
    options.add_arguments(parser)
    arguments = parser.parse_args(argv)
    log_to_terminal("agent")
    trace_by_environment(arguments.name)
    provider = make_provider(arguments.model, arguments.base_url)
    limits = ModelLimits(
        turns=arguments.max_turns,
        tokens=arguments.max_tokens,
        prompt_tokens=arguments.prompt_tokens,
        reply_tokens=arguments.reply_tokens,
        collapse=arguments.collapse,
    )
    system = options.read_text(arguments.system)
    address = options.address_of(arguments, arguments.name)

    location = default_location() if arguments.memory == "" else arguments.memory
    with open_location(location) if location else nullcontext() as memory:

        async def join() -> None:
            agent = ModelAgent(
                arguments.name,
                provider,
                system=system,
                limits=limits,
                memory=memory,
                samples=arguments.sampling,
            )
            await run(address, agent)

        anyio.run(until_signal, join)
    return 0


async def run(address: local_pod.Address, model: ModelAgent) -> None:
    """Join a pod and run a model agent in it until a signal arrives."""
    agent = model.participant
    announce_join(agent, "agent")
    async with agent.connect(address) as pod:
        # A signal ends the agent before the connection, so that it can withdraw its proposals.
        await until_signal(lambda: agent.serve(pod))
