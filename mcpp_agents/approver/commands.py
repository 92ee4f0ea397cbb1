"""`mcpp approver`: decides on proposals by rules, and leaves the rest to people.

    [[rules]]
    then = "fulfil"                   # or "reject", or "leave" (to people, whatever follows)
    from = "analyst"                  # who proposes; a glob, or several
    kind = "mcp/proposal:tools/call:read_*"
    to = "files"
    payload = { params = { arguments = { path = ["/srv/*", "!*..*"] } } }
    reason = "reading is harmless"

Each rule is a capability pattern (kind, to, context, payload) with `from` beside it. The first one
that matches decides; where none does, nothing is done.
"""

import argparse
import logging
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

import mcpp
from mcpp import Envelope, McppError, Message, Participant, kinds
from mcpp.protocol.capabilities import Capabilities, compile_pattern
from mcpp.protocol.contexts import Lineage
from mcpp_agents.cli import options
from mcpp_agents.cli.log_format import log_to_terminal

log = logging.getLogger("mcpp")


class RuleError(McppError):
    """A rule that cannot be meant."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to do with proposals that match; a key that is absent matches everything."""

    then: Literal["fulfil", "reject", "leave"]
    sender: str | list[str] = msgspec.field(default="*", name="from")
    kind: str | list[str] = f"{kinds.PROPOSAL}:*"
    to: Any = None
    context: Any = None
    payload: Any = None
    reason: str = ""


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    rules: list[Rule]


def read_rules(document: Mapping[str, Any]) -> list[Rule]:
    """Return the rules of a parsed file. Raises RuleError that says which one is wrong."""
    try:
        rules = msgspec.convert(document, _Document).rules
    except msgspec.ValidationError as error:
        raise RuleError(f"rules: {error}") from None
    Judge(rules)  # so that a wrong pattern is told now, not at the first proposal
    return rules


class Judge:
    """The rules, compiled. Owns nothing else: the same proposal gets the same verdict."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = [(rule, _compiled(rule, number)) for number, rule in enumerate(rules, 1)]

    def decide(self, proposal: Envelope, lineage: Lineage | None = None) -> Rule | None:
        """Return the first rule that matches, or None."""
        for rule, (is_from, allowed) in self._rules:
            if is_from(proposal.sender) and allowed.allow(proposal, lineage):
                return rule
        return None


def approver(rules: Iterable[Rule], name: str = "approver") -> Participant:
    """Return a participant that decides by rules."""
    agent = Participant(name)
    judge = Judge(rules)

    @agent.policy
    async def decide(message: Message) -> bool | str | None:
        rule = judge.decide(message.envelope, lineage_of(message))
        if rule is None or rule.then == "leave":
            return None
        log.info("%s: %s of %s", rule.then, message.kind, message.sender)
        return rule.then == "fulfil" or rule.reason or "rejected by rule"

    return agent


def lineage_of(message: Message) -> Lineage | None:
    """Return where a message stands, as far as rules ask: its context, the type, the parent.

    Its type may have been fixed before we joined, or not be named by the message itself: a rule
    that leaves a type to people must not be passed over for that.
    """
    context = message.context
    if context is None:
        return None
    known = message.pod.contexts.get(context.id, context)
    return Lineage(known.id, known.type, () if known.parent is None else (known.parent,))


def main(argv: list[str]) -> int:
    """Decide on proposals until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="mcpp approver",
        description="Fulfil or reject proposals by the rules of a file; what no rule matches is "
        "left to people.",
        epilog='A rule: [[rules]], then = "fulfil", "reject" or "leave", and what it is for: '
        "from, kind, to, context, payload (patterns as in capabilities), reason.",
    )
    parser.add_argument("rules", type=Path, metavar="RULES", help="a TOML file with [[rules]]")
    parser.add_argument("--as", dest="name", default="approver", metavar="NAME", help="its name")
    options.add_arguments(parser)
    arguments = parser.parse_args(argv)
    log_to_terminal("approver")
    log.setLevel(logging.INFO)  # what was decided
    try:
        rules = read_rules(tomllib.loads(arguments.rules.read_text()))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RuleError(f"{arguments.rules}: {error}") from None
    sys.stderr.write(f"mcpp approver: {len(rules)} rules\n")
    agent = approver(rules, arguments.name)
    mcpp.run(agent, url=options.address_of(arguments, arguments.name))
    return 0


def _compiled(rule: Rule, number: int) -> tuple[Any, Capabilities]:
    pattern = {"kind": rule.kind, "to": rule.to, "context": rule.context, "payload": rule.payload}
    given = {key: value for key, value in pattern.items() if value is not None}
    try:
        return compile_pattern(rule.sender), Capabilities([given])
    except McppError as error:
        raise RuleError(f"rule {number}: {error}") from None
