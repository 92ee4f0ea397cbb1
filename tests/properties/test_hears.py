"""Nothing outside `hears` reaches a participant by any path, and nothing within it is withheld.

Random pods: participants with random rights and filters send, join, resume, change filters and
leave; contexts open, move, expire and revive; rights change. Whatever a participant receives is
judged by `hearing_oracle`. A case is one envelope, or one context in an envelope of the gateway,
that one participant did or did not receive.
"""

import json
from random import Random
from typing import Any

import pytest

from mcpp import filters
from mcpp.protocol.capabilities import Capabilities
from mcpp.protocol.codec import decode
from mcpp.protocol.contexts import ContextTracker, Lineage
from mcpp_gateway.core.pod import ParticipantSettings
from tests.gateway.harness import HarnessClient, PodHarness
from tests.properties.hearing_oracle import GATEWAY, may_hear, may_know

WATCHER = "watcher"
GUESTS = tuple(f"g{number}" for number in range(5))
LIMITS: dict[str, Any] = {
    "messages_per_second": 0,
    "context_messages_per_second": 0,
    "context_idle_seconds": 5,
    "max_contexts_per_pod": 40,
    "max_dormant_contexts": 10,
    "history_messages": 60,
}
KINDS = ("chat", "reflection", "mcp/request:tools/call:x", "mcp/response:x", "note")
GLOBS = ("*", "chat", "mcp/*", "*x", "*e*", "mcp/*:x", "c*t", "none")
TYPES = ("t", "u", "v")
IDS = tuple(f"c{number}" for number in range(8))


def random_filter(random: Random, depth: int = 3) -> dict[str, Any]:
    shape = random.randrange(9 if depth else 6)
    if shape == 6:
        return {"not": random_filter(random, depth - 1)}
    if shape > 6:
        parts = [random_filter(random, depth - 1) for _ in range(random.randrange(4))]
        return {"any" if shape == 7 else "all": parts}
    return (
        {"main": True},
        {"type": random.choice(TYPES)},
        {"context": random.choice(IDS), "descendants": random.random() < 0.5},
        {"kind": random.choice(GLOBS)},
        {"from": random.choice(GUESTS)},
        {"to": random.choice(GUESTS)},
    )[shape]


class RandomPod:
    """A pod with random participants, and the check of everything that they receive."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.cases = 0
        self.hears = {name: random_filter(random) for name in GUESTS}
        self.harness = PodHarness(*GUESTS, WATCHER, limits=LIMITS)
        self.harness.perform(self.harness.pod.reconfigure(self.settings(), self.harness.now))
        self.tracker = ContextTracker()
        self.lineages: dict[str, Lineage | None] = {}  # by envelope
        self.contexts: dict[str, list[Lineage]] = {}  # of envelopes of the gateway
        self.known: dict[str, Lineage] = {}  # contexts as last seen
        self.watcher = self.harness.join(WATCHER)
        self.clients: dict[str, tuple[HarnessClient, dict[str, Any]]] = {}
        self.read: dict[HarnessClient, int] = {self.watcher: 1}
        self.number = 0

    def settings(self) -> list[ParticipantSettings]:
        everything = Capabilities([{"kind": "*"}])
        guests = [
            ParticipantSettings(name, everything, False, filters.parse(self.hears[name]))
            for name in GUESTS
        ]
        return [*guests, ParticipantSettings(WATCHER, everything)]

    def step(self) -> None:
        """Do something, and check what everyone received."""
        random = self.random
        name = random.choice(GUESTS)
        choice = random.random()
        live_before = set(self.clients)
        if name not in self.clients or choice < 0.06:
            self.join(name)
        elif choice < 0.80:
            self.send(name)
        elif choice < 0.86:
            self.harness.tick(random.choice((1, 3, 6)))
        elif choice < 0.92:
            own = random_filter(random) if random.random() < 0.5 else {"all": []}
            client, _ = self.clients[name]
            self.harness.send(client, "pod/filter", payload={"filter": own})
            self.clients[name] = client, own
        elif choice < 0.97:
            self.hears[name] = random_filter(random)
            effects = self.harness.pod.reconfigure(self.settings(), self.harness.now)
            self.harness.perform(effects)
        else:
            self.harness.leave(self.clients.pop(name)[0])
        self.check(live_before & set(self.clients) - ({name} if choice < 0.06 else set()))

    def join(self, name: str) -> None:
        random = self.random
        own = random_filter(random) if random.random() < 0.3 else {"all": []}
        after = random.choice([*self.lineages][-70:] or ["none"]) if random.random() < 0.5 else None
        last = random.choice((None, 5, 100))
        client = self.harness.join(name, filter=filters.parse(own), after=after, last=last)
        self.clients[name] = client, own
        self.read[client] = 0

    def send(self, name: str) -> None:
        random = self.random
        more: dict[str, Any] = {}
        if random.random() < 0.7:
            context: dict[str, Any] = {"id": random.choice(IDS)}
            if random.random() < 0.4:
                context["type"] = random.choice(TYPES)
            if random.random() < 0.3:
                context["parent"] = random.choice(IDS)
            more["context"] = context
        if random.random() < 0.2:
            more["to"] = random.sample(GUESTS, random.randrange(1, 3))
        self.number += 1
        kind = random.choice(KINDS)
        self.harness.send(self.clients[name][0], kind, id=f"e-{self.number}", **more)

    def check(self, live: set[str]) -> None:
        new = self.watcher.texts[self.read[self.watcher] :]
        self.read[self.watcher] = len(self.watcher.texts)
        for text in new:
            self.learn(text)
        for name, (client, own) in self.clients.items():
            texts = client.texts[self.read[client] :]
            self.read[client] = len(client.texts)
            received = {json.loads(text)["id"] for text in texts}
            for text in texts:
                self.judge(name, json.loads(text))
            if name in live and own == {"all": []}:
                self.judge_missing(name, new, received)

    def learn(self, text: bytes) -> None:
        envelope = decode(text)
        if envelope.kind == "system/context":
            payload = envelope.payload
            named = payload.get("contexts") or [payload["context"]]
            before = {each["id"]: self.tracker.find(each["id"]) for each in named}
            self.tracker.observe(envelope)
            self.contexts[envelope.id] = [
                self.tracker.find(each["id"]) or before[each["id"]] or Lineage(each["id"])
                for each in named
            ]
            self.lineages[envelope.id] = None
            return
        self.lineages[envelope.id] = self.tracker.observe(envelope)

    def judge(self, name: str, envelope: dict[str, Any]) -> None:
        """Check that a participant may have received an envelope."""
        hears = self.hears[name]
        payload = envelope["payload"]
        self.cases += 1
        if envelope["from"] != GATEWAY:
            lineage = self.lineages[envelope["id"]]
            assert may_hear(name, hears, envelope, lineage), (name, hears, envelope)
        elif envelope["kind"] == "system/welcome":
            for info in payload["contexts"]:
                self.cases += 1
                lineage = self.tracker.find(info["id"])
                assert lineage is not None
                assert may_know(hears, lineage), (name, hears, info)
        elif envelope["kind"] == "system/context":
            told = {each["id"] for each in payload.get("contexts") or [payload["context"]]}
            for lineage in self.contexts[envelope["id"]]:
                self.cases += 1
                assert may_know(hears, lineage) == (lineage.id in told), (name, hears, lineage)
        elif envelope["kind"] == "system/presence":
            entries = payload.get("entries") or [payload]
            assert name not in {each["participant"]["id"] for each in entries}
        else:
            assert envelope["kind"] in ("system/filter", "system/error")

    def judge_missing(self, name: str, new: list[bytes], received: set[str]) -> None:
        """Check that a live participant without a filter received everything that it may hear."""
        for text in new:
            envelope = json.loads(text)
            self.cases += 1
            if envelope["id"] in received or envelope["kind"] == "system/presence":
                continue
            if envelope["from"] == GATEWAY:
                lineages = self.contexts[envelope["id"]]
                assert not any(may_know(self.hears[name], each) for each in lineages)
            else:
                lineage = self.lineages[envelope["id"]]
                assert not may_hear(name, self.hears[name], envelope, lineage)


def run(cases: int, seed: int) -> int:
    """Run random pods until this many cases were judged; return how many there were."""
    random, judged = Random(seed), 0
    while judged < cases:
        pod = RandomPod(random)
        for _ in range(300):
            pod.step()
        judged += pod.cases
    return judged


@pytest.mark.rule("F-19", "F-20", "F-09", "K-15")
def test_nothing_outside_hears_reaches_a_participant() -> None:
    assert run(20_000, seed=1) >= 20_000


@pytest.mark.torture
@pytest.mark.rule("F-19", "F-20")
@pytest.mark.parametrize("seed", range(4))
def test_nothing_outside_hears_reaches_a_participant_in_a_million_cases(seed: int) -> None:
    assert run(250_000, seed=100 + seed) >= 250_000
