"""`mcpp prompt`: show what a participant's model sees, or check what it saw."""

import argparse
import sys
from pathlib import Path
from typing import Final

import anyio
import msgspec

import mcpp
from mcpp import filters
from mcpp.model_prompts import PROMPT_TOKENS, ModelPrompt, PictureChoice
from mcpp.prompts import Prompt
from mcpp_agents.cli import options
from mcpp_agents.cli.display import clean, json_document
from mcpp_agents.pictures import fetch_pictures
from mcpp_agents.prompt.reading import read_one, read_until
from mcpp_agents.prompt.report import detail, summarize
from mcpp_agents.prompt.verification import verify

# As many as a model agent keeps at least, once it has seen so many.
_LOG_MESSAGES: Final = 10_000


def main(argv: list[str]) -> int:
    """Print a prompt, or check the prompt of a past answer."""
    arguments = _parser().parse_args(argv)
    system = options.read_text(arguments.system)

    async def run() -> int:
        address = options.address_of_person(arguments, arguments.name)
        nothing = filters.parse({"any": []})
        async with mcpp.connect(address, name=arguments.name, filter=nothing) as pod:
            if arguments.verify is not None:
                return await verify(pod, arguments.verify, system)
            await _show(pod, arguments, system)
            return 0

    return anyio.run(run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcpp prompt",
        description="Show what a participant's model is shown at a point of the log, computed as "
        "the model agent computes it. The prompt goes to standard output; its size, and what was "
        "folded, collapsed, cut and left out, to standard error. Or check that a past answer was "
        "produced by the prompt that its agent recorded.",
        epilog="You see what you may read yourself: if the participant may hear more or less, its "
        "prompts differ.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--viewer", metavar="NAME", help="the participant whose prompt to show")
    what.add_argument(
        "--verify", metavar="ID", help="check the prompts behind this answer or conclusion"
    )
    parser.add_argument("--at", metavar="ID", help="the last envelope that it sees (default: now)")
    parser.add_argument("--question", metavar="ID", help="the envelope that it is to answer")
    parser.add_argument(
        "--format",
        choices=("anthropic", "openai", "markdown"),
        default="markdown",
        help="the request of a model's API, or Markdown for people (default: %(default)s)",
    )
    parser.add_argument(
        "--budget",
        type=options.positive,
        default=PROMPT_TOKENS,
        metavar="N",
        help="the prompt's token budget (default: %(default)s)",
    )
    parser.add_argument(
        "--last",
        type=options.positive,
        default=_LOG_MESSAGES,
        metavar="N",
        help="how many messages of the log it has seen (default: %(default)s)",
    )
    parser.add_argument(
        "--system", type=Path, metavar="FILE", help="the agent's instructions for the model"
    )
    parser.add_argument(
        "--details", action="store_true", help="list every message that is reduced or left out"
    )
    options.add_name(parser)
    options.add_arguments(parser)
    return parser


async def _show(pod: mcpp.Pod, arguments: argparse.Namespace, system: str) -> None:
    log = await read_until(pod, arguments.at, arguments.last)
    if not log:
        raise mcpp.McppError("the log is empty")
    question = None
    if arguments.question is not None:
        question = (await read_one(pod, arguments.question)).envelope
    envelopes = [message.envelope for message in log]
    chosen = PictureChoice(arguments.viewer).begin(envelopes, question)
    prompt = ModelPrompt(
        arguments.viewer,
        envelopes,
        question=question,
        token_budget=arguments.budget,
        system=system,
        pictures=await fetch_pictures(pod, chosen),
    ).build()
    sys.stdout.write(_render(prompt, arguments.format))
    sys.stdout.flush()
    lines = list(summarize(prompt, arguments.viewer, log, arguments.budget))
    for line in [*lines, *(detail(prompt) if arguments.details else ())]:
        sys.stderr.write(f"mcpp prompt: {clean(line)}\n")


def _render(prompt: Prompt, format: str) -> str:
    match format:
        case "anthropic":
            return json_document(msgspec.json.encode(prompt.anthropic())) + "\n"
        case "openai":
            return json_document(msgspec.json.encode(prompt.openai_chat())) + "\n"
        case _:
            return clean(prompt.markdown())
