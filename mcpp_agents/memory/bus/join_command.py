"""`mcpp memory join`: run the memory agent in a pod."""

import argparse

import anyio

from mcpp.client.tasks import until_signal
from mcpp_agents.cli import options
from mcpp_agents.cli.joining import announce_join
from mcpp_agents.memory.bus.participant import MemoryAgent
from mcpp_agents.memory.bus.summaries.rolling import RollingPolicy
from mcpp_agents.memory.bus.summaries.summarizer import Summarizer
from mcpp_agents.memory.store import MemoryStore
from mcpp_agents.model.providers import make_provider


def make_summarizer(arguments: argparse.Namespace) -> Summarizer | None:
    """Return the summarizer that `--model` names, if any.

    Raises McppError for an unknown model, a missing key, or an API client that is not installed.
    """
    if arguments.model is None:
        return None
    provider = make_provider(arguments.model, arguments.base_url)
    return Summarizer(provider, name=arguments.model)


def make_rolling_policy(arguments: argparse.Namespace) -> RollingPolicy | None:
    """Return when open contexts are summarized, None if never."""
    if arguments.no_rolling:
        return None
    return RollingPolicy(messages=arguments.rolling_messages, chars=arguments.rolling_chars)


def join(store: MemoryStore, arguments: argparse.Namespace, summarizer: Summarizer | None) -> None:
    """Serve a pod until Ctrl-C."""
    agent = MemoryAgent(
        store,
        name=arguments.name,
        granted=frozenset(arguments.grant),
        listening=not arguments.no_listen,
        summarizer=summarizer,
        rolling=make_rolling_policy(arguments),
    ).participant
    announce_join(agent, "memory")
    address = options.address_of(arguments, arguments.name)
    anyio.run(until_signal, lambda: agent.run(address))
