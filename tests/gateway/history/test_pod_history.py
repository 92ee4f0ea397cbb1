"""`pod/history` on a pod: answered in its place, to one session, one at a time."""

import time
from typing import Any

import pytest

from mcpp.filters import parse
from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.core.effects import Direct, ReadHistory
from mcpp_gateway.core.history.pages import Found, Page
from mcpp_gateway.core.history.words import Words
from mcpp_gateway.core.journal import UnreadableError
from mcpp_gateway.core.records import LogEntry
from mcpp_gateway.core.sessions import ParticipantSettings
from tests.gateway.harness import FREE, DelayedJournal, HarnessClient, PodHarness, text


def ask(harness: PodHarness, client: HarnessClient, id: str = "ask", **query: Any) -> Any:
    harness.send(client, "pod/history", id=id, payload=query)
    return client.last


@pytest.mark.rule("H-01", "H-04")
def test_the_answer_holds_the_senders_own_bytes_with_position_and_time() -> None:
    harness = PodHarness("a", "b")
    a, b = harness.join("a"), harness.join("b")
    odd = text("m-x", "a", "chat", {"text": "refund"}).replace(b'"chat"', b' \n "chat" ')
    harness.now = 1234.5
    harness.send_text(a, odd)
    before = len(a.texts)
    answer = ask(harness, b, text="Refund")
    assert (answer["kind"], answer["from"]) == ("system/history", "system:gateway")
    assert answer["correlation_id"] == "ask"
    payload = answer["payload"]
    assert odd in b.texts[-1]
    (entry,) = payload["entries"]
    assert (entry["position"], entry["time"], entry["envelope"]["id"]) == (2, 1234.5, "m-x")
    assert (payload["start"], payload["end"], payload["indexed_to"]) == (0, 3, 3)
    assert payload["epoch"] == b.welcome["pod"]["epoch"]
    assert "next" not in payload
    assert len(a.texts) == before, "it is served to one participant"
    assert harness.pod.journal.end == 3, "it is not logged"


@pytest.mark.rule("H-01")
def test_it_needs_no_capability_and_costs_a_token() -> None:
    harness = PodHarness("a", capabilities={"a": ()}, limits={"messages_per_second": 1, "burst": 2})
    a = harness.join("a")
    assert ask(harness, a, "q1")["kind"] == "system/history"
    assert ask(harness, a, "q2")["kind"] == "system/history"
    assert ask(harness, a, "q3")["payload"]["error"] == "rate_limited"


@pytest.mark.rule("H-02")
def test_an_invalid_query_is_refused_with_its_member() -> None:
    harness = PodHarness("a")
    a = harness.join("a")
    payload = ask(harness, a, limit=0)["payload"]
    assert (payload["error"], payload["member"]) == ("invalid_history", "limit")
    assert ask(harness, a, "q2", after="gone")["payload"]["member"] == "after"
    assert ask(harness, a, "q3", color="red")["payload"]["member"] == "color"
    harness.send_text(a, text("q3", "a", "pod/history").replace(b"null", b'{"limit":1,"limit":2}'))
    assert a.last["payload"]["error"] == "invalid_history"
    assert a.last["correlation_id"] == "q3"


@pytest.mark.rule("H-06")
def test_presence_about_oneself_is_history() -> None:
    harness = PodHarness("a", "b")
    a = harness.join("a")
    harness.join("b")
    found = ask(harness, a, order="oldest")["payload"]["entries"]
    assert [each["envelope"]["payload"]["participant"]["id"] for each in found] == ["a", "b"]


@pytest.mark.rule("H-05")
def test_a_page_never_fills_the_outbox() -> None:
    harness = PodHarness("a", limits={**FREE, "outbox_bytes": 40_000})
    a = harness.join("a")
    for number in range(20):
        harness.send(a, payload="x" * 2000, id=f"m{number}")
    payload = ask(harness, a)["payload"]
    assert 4 <= len(payload["entries"]) <= 6
    assert payload["next"]
    assert a.closed is None


class ReadingPod:
    """A pod on a journal that is read elsewhere."""

    def __init__(self) -> None:
        self.journal = DelayedJournal(1000)
        self.harness = PodHarness("a", "b", log=self.journal)
        self.requests: list[ReadHistory] = []
        self.harness.hub.read_history = self.requests.append

    def join(self, name: str) -> HarnessClient:
        client = self.harness.join(name)
        self.commit()
        return client

    def commit(self) -> None:
        self.journal.committed = self.journal.end
        self.harness.perform(self.harness.pod.release(self.journal.end))

    def answer(self, page: Any = None) -> None:
        request = self.requests.pop(0)
        page = page or Page([], None, 0, self.journal.committed, 0)
        self.harness.perform(self.harness.pod.history.answer(request, page, self.harness.now))


@pytest.mark.rule("H-09")
def test_one_query_of_a_participant_is_read_at_a_time_and_few_wait() -> None:
    pod = ReadingPod()
    a, b = pod.join("a"), pod.join("b")
    for number in range(10):
        pod.harness.send(a, "pod/history", id=f"q{number}")
    assert [each.id for each in pod.requests] == ["q0"]
    assert a.last["correlation_id"] == "q9"
    refusal = a.last["payload"]
    assert (refusal["error"], refusal["scope"]) == ("rate_limited", "history")
    pod.harness.send(b, "pod/history", id="other")
    assert [each.id for each in pod.requests] == ["q0", "other"], "others do not wait for it"
    pod.answer()
    assert [each.id for each in pod.requests] == ["other", "q1"]
    pod.answer()
    for _ in range(8):
        pod.answer()
    asked = [each["correlation_id"] for each in a.seen if each["kind"] == "system/history"]
    assert asked == [f"q{number}" for number in range(9)]
    pod.harness.send(a, "pod/history", id="again")
    assert [each.id for each in pod.requests] == ["again"]


@pytest.mark.rule("H-01", "G-30")
def test_an_answer_takes_its_place_behind_what_was_accepted_before_it() -> None:
    pod = ReadingPod()
    a = pod.join("a")
    pod.harness.send(a, "pod/history", id="q")
    pod.harness.send(a, id="later")
    pod.answer()
    assert "system/history" not in a.kinds, "the envelope before it is not committed"
    pod.commit()
    assert [a.ids[-2], a.last["correlation_id"]] == ["later", "q"]


@pytest.mark.rule("H-09")
def test_a_session_that_left_gets_nothing_and_the_next_request_is_read() -> None:
    pod = ReadingPod()
    a = pod.join("a")
    pod.harness.send(a, "pod/history", id="q0")
    pod.harness.leave(a)
    again = pod.join("a")
    pod.harness.send(again, "pod/history", id="q1")
    assert [each.id for each in pod.requests] == ["q0"]
    pod.answer()
    assert [each.id for each in pod.requests] == ["q1"]
    pod.answer()
    assert again.last["correlation_id"] == "q1"
    assert "system/history" not in a.kinds


def test_a_log_that_cannot_be_read_is_reported_without_its_reason() -> None:
    pod = ReadingPod()
    a = pod.join("a")
    pod.harness.send(a, "pod/history", id="q")
    pod.answer(UnreadableError("broken disk"))
    assert a.errors == ["log_unreadable"]
    assert "broken" not in a.last["payload"]["message"]


@pytest.mark.rule("H-09", "G-65")
def test_a_request_is_not_read_where_it_is_received_even_from_memory() -> None:
    harness = PodHarness("a")
    a = harness.join("a")
    request = harness.pod.receive(a.session, text("q", "a", "pod/history"), harness.now)
    assert isinstance(request, ReadHistory)
    (answer,) = harness.pod.history.read(request, harness.now, lambda: True)
    assert isinstance(answer, Direct)


@pytest.mark.rule("H-05", "G-65")
def test_a_page_ends_when_its_time_is_over_and_says_where_to_go_on() -> None:
    harness = PodHarness("a")
    a = harness.join("a")
    for number in range(5):
        harness.send(a, id=f"m{number}")
    request = harness.pod.receive(a.session, text("q", "a", "pod/history"), harness.now)
    assert isinstance(request, ReadHistory)
    harness.perform(harness.pod.history.read(request, harness.now, lambda: False))
    payload = a.last["payload"]
    assert [each["envelope"]["id"] for each in payload["entries"]] == ["m4"]
    rest = ask(harness, a, "q2", cursor=payload["next"])["payload"]
    assert [each["envelope"]["id"] for each in rest["entries"]][:4] == ["m3", "m2", "m1", "m0"]


@pytest.mark.rule("H-06", "F-19")
def test_requests_that_wait_are_read_with_the_rights_of_the_moment() -> None:
    harness = PodHarness("a", "b")
    a, b = harness.join("a"), harness.join("b")
    harness.send(a, "plan", id="secret")
    request = harness.pod.receive(b.session, text("q", "b", "pod/history"), harness.now)
    assert isinstance(request, ReadHistory)
    settings = [
        ParticipantSettings("a", Capabilities([])),
        ParticipantSettings("b", Capabilities([]), hears=parse({"not": {"kind": "plan"}})),
    ]
    harness.perform(harness.pod.reconfigure(settings, harness.now))
    harness.perform(harness.pod.history.read(request, harness.now, lambda: True))
    assert b.last["correlation_id"] == "q"
    assert "secret" not in [each["envelope"]["id"] for each in b.last["payload"]["entries"]]


@pytest.mark.rule("G-47", "G-65")
@pytest.mark.parametrize("number", ["1e300", "4.9e-324", "0.1"])
def test_searching_a_text_takes_no_longer_for_its_numbers(number: str) -> None:
    """A megabyte of `1e300` took 1.2 s."""
    values = f"[{','.join([number] * (900_000 // (len(number) + 1)))}]"
    found = text("m", "a").replace(b"null", values.encode())
    began = time.thread_time()
    assert not Words.parse("refund").match(found)
    assert time.thread_time() - began < 0.5


@pytest.mark.rule("H-06", "F-19")
def test_a_page_that_was_read_before_rights_were_narrowed_is_read_again() -> None:
    pod = ReadingPod()
    pod.join("a")
    b = pod.join("b")
    pod.harness.send(b, "pod/history", id="q")
    hears = parse({"not": {"kind": "plan"}})
    settings = [
        ParticipantSettings("a", Capabilities([])),
        ParticipantSettings("b", Capabilities([]), hears=hears),
    ]
    pod.harness.perform(pod.harness.pod.reconfigure(settings, pod.harness.now))
    before = len(b.texts)
    secret = LogEntry("s", "a", None, "plan", None, text("s", "a", "plan"))
    pod.answer(Page([Found(0, 0.0, secret)], None, 0, 1, 0))
    assert len(b.texts) == before, "what was read is not for it any more"
    (again,) = pod.requests
    assert (again.id, again.listener.hears) == ("q", hears)
    pod.answer()
    assert b.last["correlation_id"] == "q"
    assert b.last["payload"]["entries"] == []


@pytest.mark.rule("G-47", "F-08")
@pytest.mark.parametrize("kind", ["pod/history", "pod/filter"])
def test_a_long_request_to_the_gateway_is_refused_without_being_parsed(kind: str) -> None:
    """900 kB of small values took 60 ms to parse, and cost no more than a short request."""
    harness = PodHarness("a")
    a = harness.join("a")
    long = text("q", "a", kind).replace(b"null", b'{"filter":[' + b"{}," * 250_000 + b"{}]}")
    harness.send_text(a, long)
    assert "longer than" in a.last["payload"]["message"]
    assert a.last["correlation_id"] == "q"
