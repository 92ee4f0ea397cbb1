"""`mcpp approver`: decides on proposals by rules, and leaves the rest to people.

    [[rules]]
    then = "fulfil"                   # or "reject", or "leave" (to people, whatever follows)
    from = "analyst"                  # who proposes; a glob, or several
    kind = "mcp/proposal:tools/call:read_*"
    to = "files"
    payload = { params = { arguments = { path = "/srv/*" } } }
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

import anyio
import msgspec
from anyio.abc import TaskGroup

import mcpp
from mcpp import Envelope, McppError, Message, Participant, Pod, kinds
from mcpp.capabilities import Capabilities, compile_pattern
from mcpp.contexts import Lineage, Lineages
from mcpp.errors import CallError, DecodeError, Refused
from mcpp_agents import joining

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


def read_rules(document: Mapping[str, Any]) -> list[Rule]:
    """Return the rules of a parsed file. Raises RuleError that says which one is wrong."""
    try:
        rules = msgspec.convert(document.get("rules", []), list[Rule])
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
    lineages = Lineages()
    at_work: list[TaskGroup] = []
    begun = anyio.Event()

    @agent.on("*")
    async def decide(message: Message) -> None:
        lineage = lineages.observe(message.context)
        if not message.kind.startswith(f"{kinds.PROPOSAL}:"):
            return
        rule = judge.decide(message.envelope, lineage)
        if rule is None or rule.then == "leave":
            return
        if rule.then == "reject":
            await message.pod.reject(message, "rejected by rule", rule.reason or None)
        else:
            await begun.wait()
            at_work[0].start_soon(_fulfil, message)

    @agent.task
    async def work(pod: Pod) -> None:
        # One beside the other: a tool that hangs must not hold up the next decision.
        async with anyio.create_task_group() as tasks:
            at_work[:] = [tasks]
            begun.set()
            await anyio.sleep_forever()

    return agent


async def _fulfil(message: Message) -> None:
    try:
        await message.pod.fulfil(message)
    except (CallError, Refused, DecodeError) as error:
        log.warning("a proposal of %s was approved, but: %s", message.sender, error)


def main(argv: list[str]) -> int:
    """Decide on proposals until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="mcpp approver",
        description="Fulfil or reject proposals by the rules of a file; what no rule matches is "
        "left to people.",
    )
    parser.add_argument("rules", type=Path, metavar="RULES", help="a TOML file with [[rules]]")
    parser.add_argument("--as", dest="name", default="approver", metavar="NAME")
    joining.add_arguments(parser)
    arguments = parser.parse_args(argv)
    logging.basicConfig(format="mcpp approver: %(message)s", level=logging.WARNING)
    try:
        rules = read_rules(tomllib.loads(arguments.rules.read_text()))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise RuleError(f"{arguments.rules}: {error}") from None
    sys.stderr.write(f"mcpp approver: {len(rules)} rules\n")
    agent = approver(rules, arguments.name)
    mcpp.run(agent, url=joining.address_of(arguments, arguments.name))
    return 0


def _compiled(rule: Rule, number: int) -> tuple[Any, Capabilities]:
    pattern = {"kind": rule.kind, "to": rule.to, "context": rule.context, "payload": rule.payload}
    given = {key: value for key, value in pattern.items() if value is not None}
    try:
        return compile_pattern(rule.sender), Capabilities([given])
    except McppError as error:
        raise RuleError(f"rule {number}: {error}") from None
