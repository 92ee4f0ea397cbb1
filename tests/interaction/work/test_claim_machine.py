"""Who holds which name, as a state machine: every reader of the log agrees, and only one holds."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mcpp import Envelope, new_envelope
from mcpp.protocol.envelope import GATEWAY
from mcpp.session.claims import ClaimRegister

NAMES = st.sampled_from(("a", "b"))
PEOPLE = st.sampled_from(("w1", "w2", "w3"))


def holders(log: list[Envelope], name: str) -> list[tuple[str, int]]:
    """Return who has held a name so far, each with its token: the rule, read word by word."""
    found: list[tuple[str, int]] = []
    current: Envelope | None = None
    for position, envelope in enumerate(log):
        payload: Any = envelope.payload
        if envelope.kind == f"claim:{name}":
            if current is None or current.sender == envelope.sender:
                current = envelope
                found.append((envelope.sender, position))
        elif current is None:
            continue
        elif envelope.kind == f"release:{name}":
            if (envelope.sender, envelope.correlation_id) == (current.sender, current.id):
                current = None
        elif envelope.kind == "system/presence" and payload["participant"]["id"] == current.sender:
            current = None
    return [*found, ("", -1)] if current is None else found


class Claims(RuleBasedStateMachine):
    """Participants that claim, release and leave in any order, and readers that join late."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Envelope] = []
        self.register = ClaimRegister()
        self.claimed: dict[tuple[str, str], list[str]] = {}

    def say(self, kind: str, payload: Any, sender: str, about: str | None = None) -> Envelope:
        envelope = new_envelope(kind, payload, sender=sender, correlation_id=about)
        self.log.append(envelope)
        self.register.receive(envelope)
        return envelope

    @rule(name=NAMES, who=PEOPLE)
    def claim(self, name: str, who: str) -> None:
        sent = self.say(f"claim:{name}", {}, who)
        self.claimed.setdefault((name, who), []).append(sent.id)

    @rule(name=NAMES, who=PEOPLE, by=PEOPLE, which=st.integers(0, 9), done=st.booleans())
    def release(self, name: str, who: str, by: str, which: int, *, done: bool) -> None:
        ids = self.claimed.get((name, who))
        if ids:
            self.say(f"release:{name}", {"done": done}, by, ids[-1 - which % len(ids)])

    @rule(who=PEOPLE)
    def leave(self, who: str) -> None:
        payload = {"event": "leave", "participant": {"id": who}}
        self.say("system/presence", payload, GATEWAY)

    @invariant()
    def all_agree_and_tokens_grow(self) -> None:
        late = ClaimRegister(self.log)
        assert late.held == self.register.held
        for name in ("a", "b"):
            past = holders(self.log, name)
            held = self.register.held.get(name)
            expected = past[-1][0] if past and past[-1][0] else None
            assert (None if held is None else held.holder) == expected
            tokens = [token for _, token in past if token >= 0]
            assert tokens == sorted(set(tokens))
            if held is not None:
                assert self.log[tokens[-1]].id == held.id


TestClaims = Claims.TestCase
