"""`mcpp agent`: a model joins a pod."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio

from mcpp import McppError
from mcpp.cli.extras import importing
from mcpp.client import local_pod
from mcpp.client.tasks import until_signal
from mcpp_agents.cli import options
from mcpp_agents.cli.log_format import log_to_terminal
from mcpp_agents.model.agent import ModelAgent, ModelLimits
from mcpp_agents.model.providers import Provider

_KEYS: Final = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}


def main(argv: list[str]) -> int:
    """Take part until Ctrl-C."""
    usual = ModelLimits()
    parser = argparse.ArgumentParser(
        prog="mcpp agent",
        description="Have a model take part in a pod: it answers what is addressed to it, thinks "
        "in contexts that others can watch, and uses their tools.",
    )
    parser.add_argument(
        "--model", required=True, metavar="API:MODEL", help="openai:… or anthropic:…"
    )
    parser.add_argument(
        "--base-url",
        type=options.web_address,
        metavar="URL",
        help="another address that speaks this API",
    )
    parser.add_argument("--as", dest="name", default="model", metavar="NAME", help="its name")
    parser.add_argument("--system", type=Path, metavar="FILE", help="instructions for the model")
    for option, default, meaning in (
        ("--max-turns", usual.turns, "replies to one question"),
        ("--max-tokens", usual.tokens, "tokens for one question, as the API counts them"),
        ("--prompt-tokens", usual.prompt_tokens, "tokens of one prompt; older things make room"),
        ("--reply-tokens", usual.reply_tokens, "tokens of one reply"),
    ):
        parser.add_argument(
            option,
            type=options.positive,
            default=default,
            metavar="N",
            help=f"at most so many {meaning} (default: {default})",
        )
    options.add_arguments(parser)
    arguments = parser.parse_args(argv)
    log_to_terminal("agent")
    provider = make_provider(arguments.model, arguments.base_url)
    limits = ModelLimits(
        turns=arguments.max_turns,
        tokens=arguments.max_tokens,
        prompt_tokens=arguments.prompt_tokens,
        reply_tokens=arguments.reply_tokens,
    )
    try:
        system = "" if arguments.system is None else arguments.system.read_text()
    except OSError as error:
        raise McppError(str(error)) from None
    except UnicodeDecodeError as error:
        raise McppError(f"{arguments.system} is no UTF-8 text: {error}") from None
    address = options.address_of(arguments, arguments.name)

    async def take_part() -> None:
        await run(address, arguments.name, provider, system=system, limits=limits)

    anyio.run(until_signal, take_part)
    return 0


async def run(
    address: local_pod.Address, name: str, provider: Provider, *, system: str, limits: ModelLimits
) -> None:
    """Join a pod with a model."""
    agent = ModelAgent(name, provider, system=system, limits=limits).participant
    async with agent.connect(address) as pod:
        sys.stderr.write(f"mcpp agent: {pod.me} is in the pod\n")
        # A signal ends the agent before the connection, so that it can withdraw its proposals.
        await until_signal(lambda: agent.serve(pod))


def make_provider(model: str, base_url: str | None) -> Provider:
    """Return the provider that `API:MODEL` names. Raises McppError where its key is missing."""
    api, _, name = model.partition(":")
    if api not in _KEYS or not name:
        raise McppError(f"--model must be openai:MODEL or anthropic:MODEL, not {model!r}")
    variable = _KEYS[api]
    key = os.environ.get(variable)
    if not key and base_url is None:
        raise McppError(f"{variable} is not set, and no --base-url names a model without a key")
    # Each client takes a second to import: only the one that is asked for.
    with importing("agent"):
        make = _openai() if api == "openai" else _anthropic()
    return make(name, api_key=key or "none", base_url=base_url)


def _openai() -> Callable[..., Provider]:
    from mcpp_agents.model.openai_chat import OpenAI

    return OpenAI


def _anthropic() -> Callable[..., Provider]:
    from mcpp_agents.model.anthropic_messages import Anthropic

    return Anthropic
