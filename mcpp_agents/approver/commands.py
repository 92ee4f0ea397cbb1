"""`mcpp approver`: decide on proposals by the rules in a file; leave the others to people."""

import argparse
import logging
import sys
import tomllib
from pathlib import Path
from typing import Final

import mcpp
from mcpp.protocol.contexts import Lineage
from mcpp_agents.approver.rules import RuleError, RuleSet, read_rules
from mcpp_agents.cli import options
from mcpp_agents.cli.display import describe, one_line, preview_lines
from mcpp_agents.cli.log_format import log_to_terminal

logger = logging.getLogger("mcpp.approver")

_MAX_PREVIEW_LINES: Final = 20
_MAX_LINE_LENGTH: Final = 200


def main(argv: list[str]) -> int:
    """Decide on proposals until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="mcpp approver",
        description="Fulfil or reject proposals by the rules in a file. Proposals that no rule "
        "matches are left to people.",
        epilog='A rule is a table [[rules]] with then = "fulfil", "reject" or "leave", optional '
        "patterns from, kind, to, context and payload (as in capabilities), and a reason.",
    )
    parser.add_argument("rules", type=Path, metavar="RULES", help="a TOML file with [[rules]]")
    options.add_name(parser, default="approver")
    options.add_arguments(parser)
    arguments = parser.parse_args(argv)
    log_to_terminal("approver")
    logger.setLevel(logging.INFO)  # decisions
    try:
        rules = read_rules(tomllib.loads(arguments.rules.read_text()))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RuleError(f"{arguments.rules}: {error}") from None
    sys.stderr.write(f"mcpp approver: {len(rules.rules)} rules\n")
    agent = approver(rules, arguments.name)
    mcpp.run(agent, url=options.address_of(arguments, arguments.name))
    return 0


def approver(rules: RuleSet, name: str = "approver") -> mcpp.Participant:
    """Return a participant that decides on proposals by rules."""
    agent = mcpp.Participant(name)

    @agent.policy
    async def decide(message: mcpp.Message) -> bool | str | None:
        rule = rules.decide(message.envelope, lineage_of(message))
        if rule is None or rule.then == "leave":
            return None
        logger.info("%s: %s %s", rule.then, message.sender, one_line(describe(message.envelope)))
        for line in preview_lines(message.envelope)[:_MAX_PREVIEW_LINES]:
            logger.info("  %s", one_line(line, _MAX_LINE_LENGTH))
        return rule.then == "fulfil" or rule.reason or "rejected by rule"

    return agent


def lineage_of(message: mcpp.Message) -> Lineage | None:
    """Return a message's context with its type and parent, which are all that rules can name.

    The message itself may omit the type, and it may have been fixed before we joined. So use what
    the pod knows: otherwise a rule that leaves contexts of a type to people would not match.
    """
    context = message.context
    if context is None:
        return None
    known = message.pod.contexts.get(context.id, context)
    return Lineage(known.id, known.type, () if known.parent is None else (known.parent,))
