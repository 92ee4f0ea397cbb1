"""The cost of an envelope, counted in bytecodes, which are the same on every machine.

The hot path is short on purpose (see `benchmarks/speed.py`). These tests fail if it gets longer.
"""

import asyncio
import gc
import json
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any
from urllib.parse import quote

import pytest
from websockets.frames import Frame, Opcode

from mcpp_gateway import config
from mcpp_gateway.edge.admission import AdmissionControl
from mcpp_gateway.edge.connection import ServerConnection
from mcpp_gateway.edge.server import Gateway
from tests.gateway.edge.test_connection import RecordingSocket
from tests.gateway.harness import DelayedJournal, HubHarness, ManualLoop, text
from tests.gateway.sockets import received

# On Python 3.11 it is 620 with a context. One more function call is about 30.
MOST_BYTECODES = 750
# When the log is committed. Of these, 23 are for the frame, which in memory is made at once.
MOST_BYTECODES_TO_RELEASE = 60
ENVELOPES = 64


class GatewayHarness:
    """A gateway without sockets, with one pod and a number of receivers."""

    def __init__(self, receivers: int = 1, filters: Sequence[Any] = (), **limits: float) -> None:
        unlimited = {"messages_per_second": 0, "context_messages_per_second": 0}
        lines = ["[limits]", *(f"{key} = {value}" for key, value in (unlimited | limits).items())]
        for number in range(receivers):
            lines += [
                f"[pods.demo.participants.p{number}]",
                f'token = "{_token(number)}"',
                'capabilities = [{ kind = "chat" }, { kind = "x", payload = { a = 1 } }]',
            ]
        found = config.parse("\n".join(lines), {})
        self.loop = asyncio.SelectorEventLoop()
        self.gateway = Gateway(found, self.loop)
        self.gateway.admission = AdmissionControl(found, 8787)
        budget = self.gateway.quota.budget
        budget.clock = budget.cpu_clock = self.gateway.hub.clock = float  # tracing takes time
        self.connections = [
            self._join(number, filters[number] if filters else {"all": []})
            for number in range(receivers)
        ]
        self.flush()

    def close(self) -> None:
        for connection in self.connections:
            connection.connection_lost(None)
        self.loop.close()

    def _join(self, number: int, filter: Any) -> ServerConnection:
        connection = ServerConnection(self.gateway)
        connection.connection_made(RecordingSocket())
        query = quote(json.dumps(filter))
        connection.data_received(
            f"GET /ws?filter={query} HTTP/1.1\r\nhost: localhost:8787\r\nupgrade: websocket\r\n"
            "connection: upgrade\r\nsec-websocket-version: 13\r\n"
            "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            f"authorization: Bearer {_token(number)}\r\n\r\n".encode()
        )
        return connection

    def flush(self) -> None:
        self.gateway.hub.flush()

    def send(self, texts: Sequence[bytes]) -> None:
        frames = b"".join(Frame(Opcode.TEXT, each).serialize(mask=True) for each in texts)
        self.connections[0].data_received(frames)

    def cost(self, **members: Any) -> float:
        """Return the bytecodes per envelope, from its bytes until it is queued for writing."""
        self.send([text("warm", "p0", **members)])
        texts = [text(f"id-{n}", "p0", **members) for n in range(ENVELOPES)]
        frames = b"".join(Frame(Opcode.TEXT, each).serialize(mask=True) for each in texts)
        count = _bytecodes(lambda: self.connections[0].data_received(frames))
        assert received(self.gateway) >= ENVELOPES
        assert not self.gateway.pods["demo"].refused
        return count / ENVELOPES


def _token(number: int) -> str:
    return f"token-of-{number:08d}"


def _bytecodes(action: Callable[[], None]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.disable()  # finalizers of other tests' garbage would be counted
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


@pytest.fixture
def harness(request: pytest.FixtureRequest) -> Callable[..., GatewayHarness]:
    def build(receivers: int = 1, filters: Sequence[Any] = (), **limits: float) -> GatewayHarness:
        made = GatewayHarness(receivers, filters, **limits)
        request.addfinalizer(made.close)
        return made

    return build


CONTEXT = {"id": "c-0", "type": "reasoning"}


def test_an_envelope_takes_few_bytecodes(harness: Callable[..., GatewayHarness]) -> None:
    plain = harness().cost(payload={"text": "x" * 200})
    within = harness().cost(payload={"text": "x" * 200}, context=CONTEXT)
    assert plain < within < MOST_BYTECODES


def test_what_waits_for_the_log_takes_few_bytecodes_more() -> None:
    loop = ManualLoop()
    journal = DelayedJournal(1000)
    harness = HubHarness(loop, "p0", journal=journal)
    peer = harness.join("p0")

    def commit() -> None:
        journal.committed = journal.end
        harness.hub.perform_all(harness.pod.release(journal.end))

    commit()
    loop.turn()
    for number in range(ENVELOPES):
        harness.send(peer, f"id-{number}", payload={"text": "x" * 200})
    assert _bytecodes(commit) / ENVELOPES < MOST_BYTECODES_TO_RELEASE
    loop.turn()
    assert len(peer.texts) == 1 + ENVELOPES
    loop.close()


@pytest.mark.rule("G-40")
def test_the_cost_does_not_grow_with_receivers(harness: Callable[..., GatewayHarness]) -> None:
    assert harness(100).cost(context=CONTEXT) == harness(1).cost(context=CONTEXT)


@pytest.mark.rule("G-40")
def test_the_cost_grows_little_with_different_filters(
    harness: Callable[..., GatewayHarness],
) -> None:
    filters = [{"any": [{"kind": "chat"}, {"from": f"p{n}"}]} for n in range(50)]
    one = harness(50, [filters[0]] * 50).cost()
    many = harness(50, filters).cost()
    assert (many - one) / 49 < 40


def test_the_cost_does_not_grow_with_contexts(harness: Callable[..., GatewayHarness]) -> None:
    def cost(contexts: int) -> float:
        many = {"max_contexts_per_participant": 20_000, "max_contexts_per_pod": 20_000}
        busy = harness(**many, history_messages=10)
        for first in range(0, contexts, 1000):
            batch = range(first, min(first + 1000, contexts))
            busy.send([text(f"in-{n}", "p0", context=_context(n)) for n in batch])
            busy.flush()
        assert len(busy.gateway.pods["demo"].tree) == contexts
        return busy.cost(context=_context(7))

    assert cost(10_000) == cost(10)


def _context(number: int) -> dict[str, str]:
    above = {"parent": f"c-{number - 1}"} if number % 8 else {}
    return {"id": f"c-{number}", "type": "reasoning", **above}


def test_the_cost_does_not_grow_with_history(harness: Callable[..., GatewayHarness]) -> None:
    def cost(history: int) -> float:
        busy = harness(history_messages=history)
        for first in range(0, history, 1000):
            busy.send([text(f"old-{first + n}", "p0") for n in range(1000)])
            busy.flush()
        assert busy.gateway.pods["demo"].journal.start > 0
        return busy.cost()

    assert cost(20_000) == cost(1_000)
