"""Who may read and name a blob is what the log and the uploads say, by an oracle that reads both.

Random pods: participants with random `hears` upload, name blobs in random envelopes, and hear of
them; rights change, the log forgets its beginning, and uploads age. After each step the gateway's
answer for every participant and blob is compared with a naive one.
"""

import json
from random import Random
from typing import Any

import pytest

from mcpp import filters
from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.core.attachments import blob_table
from mcpp_gateway.core.attachments.blob_table import BlobTable, QuotaError
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import ParticipantSettings
from mcpp_gateway.core.records import State, decode_state, encode_state
from tests.gateway.harness import PodHarness
from tests.properties.hearing_oracle import may_hear
from tests.properties.test_hears import GUESTS, IDS, KINDS, TYPES, random_filter

GRACE_SECONDS = 20.0
CALL_SECONDS = 12.0
LIMITS: dict[str, Any] = {
    "messages_per_second": 0,
    "context_messages_per_second": 0,
    "history_messages": 40,
    "blob_grace_seconds": GRACE_SECONDS,
}
BLOBS = tuple(f"{number:064x}" for number in range(6))
SIZE = 10_000


class AttachmentPod:
    """A random pod, and what it should permit."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.hears: dict[str, Any] = {}
        self.harness = PodHarness(*GUESTS, limits=LIMITS)
        self.change_rights()
        self.clients = {name: self.harness.join(name) for name in GUESTS}
        self.uploads: dict[str, dict[str, float]] = {}  # by blob: participant, time
        self.fresh: dict[str, float] = {}  # by blob: until when it is kept without a name
        self.cases = self.permitted = self.calls = 0

    def change_rights(self) -> None:
        everything = Capabilities([{"kind": "*"}])
        self.hears = {name: random_filter(self.random) for name in GUESTS}
        self.hears[GUESTS[0]] = {}
        settings = [
            ParticipantSettings(name, everything, False, filters.parse(json.dumps(hears)))
            if hears
            else ParticipantSettings(name, everything)
            for name, hears in self.hears.items()
        ]
        self.harness.perform(self.harness.pod.reconfigure(settings, self.harness.now))

    def named(self, blob: str, *, by_calls: bool = True) -> list[tuple[dict[str, Any], Any]]:
        """Return the envelopes that name a blob and still count, with their lineages."""
        journal = self.harness.pod.journal
        entries = journal.read(journal.start, 1000)
        parsed = [(json.loads(entry.text), entry.lineage, entry.time) for entry in entries]
        return [
            (envelope, lineage)
            for envelope, lineage, time in parsed
            if any(each["hash"] == blob for each in envelope.get("attachments", ()))
            if not self.is_for_call(envelope, blob)
            or (by_calls and time + CALL_SECONDS > self.harness.now)
        ]

    @staticmethod
    def is_for_call(envelope: dict[str, Any], blob: str) -> bool:
        attachments = [each for each in envelope["attachments"] if each["hash"] == blob]
        is_call = envelope["kind"].startswith(("mcp/request:", "mcp/response:"))
        return is_call and all(each.get("private") for each in attachments)

    def may_read(self, name: str, blob: str, *, by_calls: bool = True) -> bool:
        if name in self.uploads.get(blob, ()):
            return True
        if blob not in self.uploads:
            return False
        return any(
            self.is_permitted(name, blob, envelope, lineage)
            for envelope, lineage in self.named(blob, by_calls=by_calls)
        )

    def is_permitted(self, name: str, blob: str, envelope: dict[str, Any], lineage: Any) -> bool:
        hears = self.hears[name]
        if hears and not may_hear(name, hears, envelope, lineage):
            return False
        if name == envelope["from"] or name in envelope.get("to", ()):
            return True
        attachments = [each for each in envelope["attachments"] if each["hash"] == blob]
        return not all(each.get("private") for each in attachments)

    def upload(self) -> None:
        name, blob = self.random.choice(GUESTS), self.random.choice(BLOBS)
        self.harness.pod.blobs.add(name, blob, SIZE, self.harness.now)
        self.uploads.setdefault(blob, {})[name] = self.harness.now
        self.fresh[blob] = self.harness.now + GRACE_SECONDS

    def send(self) -> None:
        random, name = self.random, self.random.choice(GUESTS)
        blobs = random.sample(BLOBS, random.choice((0, 1, 1, 1, 2)))
        members: dict[str, Any] = {}
        if random.random() < 0.5:
            members["context"] = {"id": random.choice(IDS), "type": random.choice(TYPES)}
        if random.random() < 0.5:
            members["to"] = [random.choice(GUESTS)]
        attachments: list[dict[str, Any]] = [
            {"hash": blob, "size": SIZE, "media_type": "a/b"} for blob in blobs
        ]
        if "to" in members:
            for each in attachments:
                each["private"] = random.random() < 0.7
            if random.random() < 0.2:  # the same, named for all
                attachments += [each | {"private": False} for each in attachments]
        allowed = all(self.may_read(name, blob, by_calls=False) for blob in blobs)
        client, kind = self.clients[name], random.choice(KINDS)
        before = len(client.errors)
        self.harness.send(client, kind, attachments=attachments, **members)
        assert client.errors[before:] == ([] if allowed else ["no_attachment"])
        for blob in blobs if allowed else ():
            self.call(name, blob, {"kind": kind, "attachments": attachments})
        self.cases += bool(blobs)

    def answer(self) -> None:
        """Have an uploader name a blob in a private response."""
        if not self.uploads:
            return
        blob = self.random.choice(sorted(self.uploads))
        name, to = self.random.choice(sorted(self.uploads[blob])), self.random.choice(GUESTS)
        attachment = {"hash": blob, "size": SIZE, "media_type": "a/b", "private": True}
        kind = "mcp/response:x"
        self.harness.send(self.clients[name], kind, to=[to], attachments=[attachment])
        self.call(name, blob, {"kind": kind, "attachments": [attachment]})

    def call(self, name: str, blob: str, envelope: dict[str, Any]) -> None:
        """Take note that an envelope names a blob, which may have been uploaded for a call."""
        if self.is_for_call(envelope, blob):
            self.calls += 1
            if self.uploads[blob].keys() == {name}:
                self.fresh.pop(blob, None)

    def pass_time(self) -> None:
        self.harness.now += self.random.choice((0.1, 1.0, 15.0))

    def expire(self) -> None:
        pod = self.harness.pod
        gone = pod.blobs.expire(pod.journal.start, self.harness.now)
        for blob in list(self.uploads):
            is_fresh = self.fresh.get(blob, 0.0) > self.harness.now
            is_kept = is_fresh or bool(self.named(blob))
            assert (blob in gone) == (not is_kept)
            if not is_kept:
                del self.uploads[blob]

    def check(self) -> None:
        pod = self.harness.pod
        for name in GUESTS:
            rights = pod.members.rights(name)
            for blob in BLOBS:
                size = pod.blobs.readable_size(rights, blob, pod.journal.committed)
                expected = self.may_read(name, blob)
                assert (size is not None) == expected, (name, blob, self.hears[name])
                self.cases += 1
                self.permitted += expected

    def restart(self) -> None:
        """Go on with a table that is read back from a state."""
        pod = self.harness.pod
        state = pod.snapshot(term=1, index=1, boot="", now=self.harness.now)
        pod.blobs.restore(decode_state(encode_state(state)))
        assert isinstance(state, State)

    def used(self) -> None:
        table = self.harness.pod.blobs
        assert table.used_bytes == SIZE * len(self.uploads)
        assert len(table) == len(self.uploads)


@pytest.mark.rule("A-06", "A-09", "A-13", "A-15")
@pytest.mark.parametrize("seed", range(6))
def test_access_is_what_the_log_and_the_uploads_say(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_table, "CALL_SECONDS", CALL_SECONDS)
    random = Random(seed)
    pod = AttachmentPod(random)
    steps = [pod.upload] * 3 + [pod.send] * 12 + [pod.pass_time] * 2 + [pod.restart]
    steps += [pod.answer] * 4
    for _ in range(150):
        random.choice(steps)()
        pod.expire()
        if random.random() < 0.05:
            pod.change_rights()
        pod.check()
        pod.used()
    assert pod.cases > 2000
    assert pod.permitted > 200
    assert pod.calls > 10


@pytest.mark.rule("A-07")
def test_what_is_remembered_of_namings_is_bounded_and_only_restricts() -> None:
    harness = PodHarness("alice", "bob", "carol", limits=LIMITS | {"history_messages": 10_000})
    only = filters.parse({"kind": "note/0"})
    capabilities = Capabilities([{"kind": "*"}])
    settings = [
        ParticipantSettings("alice", capabilities),
        ParticipantSettings("bob", capabilities, False, only),
        ParticipantSettings("carol", capabilities),
    ]
    harness.perform(harness.pod.reconfigure(settings, harness.now))
    alice = harness.join("alice")
    harness.pod.blobs.add("alice", BLOBS[0], SIZE, harness.now)
    attachment = {"hash": BLOBS[0], "size": SIZE, "media_type": "a/b"}
    readable: list[tuple[bool, bool]] = []
    for number in range(300):
        harness.send(alice, f"note/{number}", attachments=[attachment])
        pod = harness.pod
        sizes = [
            pod.blobs.readable_size(pod.members.rights(name), BLOBS[0], pod.journal.committed)
            for name in ("bob", "carol")
        ]
        readable.append((sizes[0] is not None, sizes[1] is not None))
    assert readable == [(number < 256, True) for number in range(300)]
    state = harness.pod.snapshot(term=1, index=1, boot="", now=harness.now)
    assert [len(each.grants) for each in state.named] == [256]


@pytest.mark.rule("A-02")
@pytest.mark.parametrize("seed", range(3))
def test_quotas_are_exact_whatever_the_order_of_uploads(seed: int) -> None:
    random = Random(seed)
    limits = PodLimits(
        max_blob_bytes_per_participant=50_000,
        max_blob_bytes_per_pod=80_000,
        blob_grace_seconds=10.0,
    )
    table = BlobTable(lambda participant: limits)
    now, kept = 0.0, dict[str, tuple[int, dict[str, float]]]()
    for _ in range(400):
        name, blob = random.choice("abc"), random.choice(BLOBS)
        size = 1000 * (1 + BLOBS.index(blob) * 4)
        own = sum(max(4096, each) for each, uploads in kept.values() if name in uploads)
        total = sum(max(4096, each) for each, _ in kept.values())
        fits = own + size <= 50_000 and total + size <= 80_000
        try:
            table.reserve(name, size)
        except QuotaError:
            assert not fits
        else:
            assert fits
            table.release(name, size)
            table.add(name, blob, size, now)
            kept.setdefault(blob, (size, {}))[1][name] = now
        now += random.choice((0.0, 1.0, 4.0))
        table.expire(0, now)
        kept = {key: value for key, value in kept.items() if max(value[1].values()) + 10.0 > now}
        assert table.used_bytes == sum(max(4096, each) for each, _ in kept.values())
