"""The approver's rules: their format, validation and evaluation.

    [[rules]]
    then = "fulfil"                   # or "reject", or "leave" (for a person to decide)
    from = "analyst"                  # the proposer: a glob or a list of globs
    kind = "mcp/proposal:tools/call:read_*"
    to = "files"
    payload = { params = { arguments = { path = ["/srv/*", "!*..*"] } } }
    reason = "reading is harmless"

Each rule is a capability pattern (kind, to, context, payload) plus `from`. The first rule that
matches decides. A proposal that no rule matches is left undecided.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from mcpp import Envelope, McppError, kinds
from mcpp.protocol.capabilities import Capabilities, compile_pattern
from mcpp.protocol.contexts import Lineage


class RuleError(McppError):
    """The rules file is invalid."""


class ApprovalRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to do with matching proposals. An absent key matches everything."""

    then: Literal["fulfil", "reject", "leave"]
    sender: str | list[str] = msgspec.field(default="*", name="from")
    kind: str | list[str] = f"{kinds.PROPOSAL}:*"
    to: Any = None
    context: Any = None
    payload: Any = None
    reason: str = ""


class _RulesFile(msgspec.Struct, forbid_unknown_fields=True):
    rules: list[ApprovalRule]


class RuleSet:
    """Compiled rules, in order. Stateless: the same proposal always gets the same decision."""

    def __init__(self, rules: Iterable[ApprovalRule]) -> None:
        """Compile the rules. Raises RuleError, which names the first invalid one."""
        self.rules = tuple(rules)
        self._compiled = [_compile(rule, number) for number, rule in enumerate(self.rules, 1)]

    def decide(self, proposal: Envelope, lineage: Lineage | None = None) -> ApprovalRule | None:
        """Return the first rule that matches, or None."""
        for rule, (is_from, allowed) in zip(self.rules, self._compiled, strict=True):
            if is_from(proposal.sender) and allowed.allow(proposal, lineage):
                return rule
        return None


def read_rules(document: Mapping[str, Any]) -> RuleSet:
    """Return the rules in a parsed file. Raises RuleError, which names the first invalid one."""
    try:
        return RuleSet(msgspec.convert(document, _RulesFile).rules)
    except msgspec.ValidationError as error:
        raise RuleError(f"rules: {error}") from None


def _compile(rule: ApprovalRule, number: int) -> tuple[Any, Capabilities]:
    pattern = {"kind": rule.kind, "to": rule.to, "context": rule.context, "payload": rule.payload}
    given = {key: value for key, value in pattern.items() if value is not None}
    try:
        return compile_pattern(rule.sender), Capabilities([given])
    except McppError as error:
        raise RuleError(f"rule {number}: {error}") from None
