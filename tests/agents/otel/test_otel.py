"""`mcpp otel`: contexts from a pod's log as spans, exported at least once each."""

import os
import signal
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import mcpp
from mcpp.cli.main import main
from mcpp.client.tasks import background
from mcpp.testing import MemoryPod
from mcpp_agents.otel import contexts as context_module
from mcpp_agents.otel.contexts import ContextLog, TracedContext
from mcpp_agents.otel.exporter import ContextExporter
from mcpp_agents.otel.spans import span_of
from mcpp_agents.otel.state import ExportState, StateError, open_state, read_state, write_state
from tests.agents.otel.collector import Collector, collecting
from tests.agents.processes import Commands
from tests.interaction.conftest import SocketPod

pytestmark = [pytest.mark.anyio, pytest.mark.rule("O-07")]
SECOND = 1_000_000_000


class AwaitedExporter(InMemorySpanExporter):
    """OpenTelemetry's exporter in memory, for which a test can wait."""

    def __init__(self) -> None:
        super().__init__()
        self._exported = threading.Condition()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._exported:
            self._exported.notify_all()
            return super().export(spans)

    async def wait_for(self, count: int) -> dict[str, ReadableSpan]:
        """Wait for so many spans and return them by name."""

        def wait() -> bool:
            with self._exported:
                return self._exported.wait_for(lambda: len(self.get_finished_spans()) >= count, 20)

        assert await anyio.to_thread.run_sync(wait)
        return {span.name: span for span in self.get_finished_spans()}


@asynccontextmanager
async def exporting(pod: MemoryPod, **options: Any) -> AsyncIterator[AwaitedExporter]:
    """Export a pod's contexts for the duration of the block."""
    exporter = AwaitedExporter()
    async with pod.connect("otel", **options) as listener, background() as tasks:
        tasks.start_soon(ContextExporter(exporter, ExportState()).follow, listener)
        yield exporter


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


async def test_parents_titles_outcomes_and_creators_become_spans(pod: MemoryPod) -> None:
    async with pod.connect("alice") as alice, exporting(pod) as exporter:
        async with alice.context("plan", title="Plan a trip") as plan:
            async with plan.child("step", title="Book") as book:
                await book.send("chat", "hello")
                await book.conclude("booked")
            with pytest.raises(ValueError, match="no train"):
                async with plan.child("step", title="Ride"):
                    raise ValueError("no train")
            await plan.conclude("planned")
        spans = await exporter.wait_for(3)
    plan_span, book_span, ride_span = spans["Plan a trip"], spans["Book"], spans["Ride"]
    assert plan_span.parent is None
    assert book_span.parent is not None
    assert book_span.parent.span_id == id_of(plan_span)
    assert len({span.context.trace_id for span in spans.values() if span.context}) == 1
    assert plan_span.status.status_code is StatusCode.OK
    assert ride_span.status.status_code is StatusCode.ERROR
    assert ride_span.status.description == "no train"
    assert plan_span.resource.attributes["service.name"] == "alice"
    assert (
        dict(book_span.attributes or {}).items()
        >= {
            "mcpp.context.type": "step",
            "mcpp.context.state": "concluded",
            "mcpp.messages": 2,
        }.items()
    )
    assert (plan_span.start_time or 0) <= (book_span.start_time or 0)
    assert (plan_span.end_time or 0) >= (ride_span.end_time or 0)


class Script:
    """A log written by hand, one envelope a second."""

    def __init__(self, **options: Any) -> None:
        self.log = ContextLog(**options)
        self.now = 0
        self.ended: list[TracedContext] = []

    def add(
        self, context: str | None, kind: str = "chat", payload: Any = None, **more: Any
    ) -> mcpp.Envelope:
        described = more.pop("described", {})
        made = None if context is None else mcpp.new_context(id=context, **described)
        envelope = mcpp.new_envelope(
            kind,
            payload if payload is not None else {"text": "x"},
            sender=more.pop("sender", "alice"),
            context=made,
            **more,
        )
        self.now += SECOND
        self.ended += self.log.add(envelope, self.now)
        return envelope

    def event(self, event: str, *ids: str) -> None:
        told = [{"id": id, "creator": "alice"} for id in ids]
        payload = {"event": event, "contexts": told}
        self.add(None, "system/context", payload, sender="system:gateway")

    def conclude(self, context: str, **payload: Any) -> None:
        self.add(context, "conclusion", {"text": "done", **payload})

    def spans(self) -> dict[str, ReadableSpan]:
        return {context.info.id: span_of(context, "demo") for context in self.ended}


def test_an_answer_in_another_context_is_a_link() -> None:
    script = Script()
    question = script.add("asking")
    script.add("answering", correlation_id=question.id, sender="bob")
    script.add("answering", "conclusion", sender="bob")
    script.conclude("asking")
    spans = script.spans()
    (link,) = spans["answering"].links
    assert link.context == spans["asking"].context
    assert spans["asking"].links == ()


def test_requests_link_to_the_traces_that_they_carry() -> None:
    script = Script()
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    for given in (trace, "00-" + "0" * 32 + "-" + "b" * 16 + "-01", "x" * 55, 7, "x" * 1_000_000):
        params = {"name": "t", "_meta": {"traceparent": given}}
        payload = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        script.add("c", "mcp/request:tools/call:t", payload, to=["bob"])
    script.conclude("c")
    (link,) = script.spans()["c"].links
    assert f"{link.context.trace_id:032x}" == "a" * 32


def test_a_conclusion_of_another_participant_ends_nothing() -> None:
    script = Script()
    script.add("c")
    script.add("c", "conclusion", sender="bob")
    assert script.ended == []
    script.conclude("c", outcome="cancelled")
    (ended,) = script.ended
    assert (ended.state, ended.start, ended.end) == ("cancelled", SECOND, 3 * SECOND)
    assert script.spans()["c"].status.status_code is StatusCode.UNSET


def test_an_expired_context_ends_late_envelopes_begin_nothing_and_a_revival_does() -> None:
    script = Script()
    script.add("c")
    script.event("expired", "c", "unknown")
    script.add("c", sender="bob")
    assert [context.state for context in script.ended] == ["expired"]
    script.event("revived", "c")
    script.add("c")
    script.conclude("c")
    first, second = (span_of(context, "demo") for context in script.ended)
    assert first.context is not None
    assert id_of(first) != id_of(second)
    assert [link.context for link in second.links] == [first.context]


def test_children_of_ended_and_of_unknown_parents_stay_in_one_trace() -> None:
    script = Script()
    script.add("root")
    script.add("child", described={"parent": "root"})
    script.conclude("root")
    script.event("expired", "root")
    script.add("grandchild", described={"parent": "child"})
    script.conclude("grandchild")
    script.conclude("child")
    script.add("orphan", described={"parent": "never-seen"})
    script.conclude("orphan")
    spans = script.spans()
    traces = {id: span.context.trace_id for id, span in spans.items() if span.context}
    assert traces["root"] == traces["child"] == traces["grandchild"] != traces["orphan"]
    assert spans["orphan"].parent is not None


def test_usage_of_a_conclusion_is_on_its_span_if_it_can_be_true() -> None:
    script = Script()
    counted = {"input_tokens": 9, "output_tokens": 2, "cached_tokens": 1, "model": "m"}
    for name, usage in {
        "good": counted,
        "negative": counted | {"input_tokens": -1},
        "huge": counted | {"input_tokens": 10**30},
        "text": "many",
    }.items():
        script.add(name)
        script.conclude(name, usage=usage)
    spans = script.spans()
    assert (spans["good"].attributes or {})["gen_ai.usage.input_tokens"] == 9
    for name in ("negative", "huge", "text"):
        assert "gen_ai.usage.input_tokens" not in (spans[name].attributes or {})


def test_open_contexts_and_what_is_kept_of_each_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(context_module, "MAX_ENDED", 5)
    script = Script(max_open=10)
    for number in range(50):
        script.add(f"c{number}")
    assert len(script.log.open) == 10
    assert [context.state for context in script.ended] == ["open"] * 40
    assert len(script.log._ended) == 5
    for number in range(200):
        payload = {"thought": "x", "step": f"step {number}" * 100}
        script.add("c49", "reflection", payload, sender="alice")
        script.add("c49", sender=f"p{number}")
    kept = len(msgspec.json.encode(script.log.open["c49"]))
    assert kept < 20_000


@pytest.mark.parametrize("ts", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59+00:00"])
async def test_times_that_no_clock_shows_do_no_harm(pod: MemoryPod, ts: str) -> None:
    async with pod.connect("alice") as alice:
        context = mcpp.new_context(id="c")
        for kind in ("chat", "conclusion"):
            made = mcpp.new_envelope(kind, {"text": "x"}, sender="alice", context=context)
            await alice._connection.send(msgspec.structs.replace(made, ts=ts))
    async with exporting(pod, last=10) as exporter:
        (span,) = (await exporter.wait_for(1)).values()
    assert 0 <= (span.start_time or 0) <= (span.end_time or 0) < 4_000_000_000 * SECOND


def test_a_state_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state"
    assert read_state(path).after is None
    path.write_text("{")
    with pytest.raises(StateError, match="cannot read"):
        read_state(path)
    write_state(path, msgspec.json.encode(ExportState(pod="demo", after="x")))
    assert read_state(path).after == "x"
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(StateError, match=r"cannot write .*: Not a directory"):
        write_state(path / "below a file" / "state", b"{}")


def test_a_state_is_created_with_its_folder_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "state"
    assert open_state(path) == ExportState()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    write_state(path, msgspec.json.encode(ExportState(pod="demo", after="x")))
    assert open_state(path) == read_state(path) == ExportState(pod="demo", after="x")


# --- the command, with a collector ---


async def arrived(collector: Collector, *names: str) -> None:
    await anyio.to_thread.run_sync(collector.wait_for, *names)


async def test_the_command_exports_and_goes_on_after_a_kill(
    sockets: SocketPod, commands: Commands, tmp_path: Path
) -> None:
    with collecting() as collector:
        endpoint = f"{collector.url}/v1/traces"
        arguments = ["otel", "--endpoint", endpoint, "--state", str(tmp_path / "state")]
        sockets.add("alice")
        async with sockets.connect("alice") as alice:
            async with commands.start("otel", *arguments) as first:
                await first.line_with("otel is in the pod")
                outer = alice.context("task", title="outer")
                await outer.send("chat", "begun")
                await alice.context("task", title="before").conclude("done")
                await arrived(collector, "before")
                await alice.context("task", title="next").conclude("done")
                await arrived(collector, "next")  # so the state after the first was stored
                first.process.send_signal(signal.SIGKILL)
                await first.wait()
            await alice.context("task", title="meanwhile", parent=outer).conclude("done")
            async with commands.start("otel", *arguments) as second:
                await second.line_with("otel is in the pod")
                await outer.conclude("done")
                await arrived(collector, "meanwhile", "outer")
                assert await second.interrupt() == 0
    spans = {span.name: span for span in collector.spans}
    assert spans["meanwhile"].parent == spans["outer"].id
    assert spans["meanwhile"].trace == spans["outer"].trace
    assert spans["outer"].attributes["mcpp.messages"] == 2
    assert spans["outer"].seconds > 0
    assert spans["outer"].service == "alice"


async def test_nothing_is_lost_while_the_collector_refuses(
    sockets: SocketPod, commands: Commands
) -> None:
    with collecting() as collector:
        collector.status = 400
        arguments = ["otel", "--endpoint", f"{collector.url}/v1/traces"]
        sockets.add("alice")
        async with (
            sockets.connect("alice") as alice,
            commands.start("otel", *arguments) as command,
        ):
            await command.line_with("otel is in the pod")
            await alice.context("task", title="refused").conclude("done")
            await command.line_with("spans were not taken")
            await alice.context("task", title="later").conclude("done")
            collector.status = 200
            await arrived(collector, "refused", "later")
            assert await command.interrupt() == 0


async def test_the_console_shows_spans_as_json(sockets: SocketPod, commands: Commands) -> None:
    sockets.add("alice")
    async with (
        sockets.connect("alice") as alice,
        commands.start("otel", "otel", "--console") as command,
    ):
        await command.line_with("otel is in the pod")
        await alice.context("task", title="shown").conclude("done")
        assert await command.line_with('"name": "shown"')
        os.kill(command.process.pid, signal.SIGTERM)
        assert await command.wait() == 0


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("/proc/state", "write {}: "),
        ("/proc/new/state", "write {}: "),
        ("file/state", "read {}: Not a directory"),
        (".", "read {}: Is a directory"),
    ],
)
def test_a_state_that_cannot_be_written_is_one_line_at_the_start(
    place: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / place
    assert main(["otel", "--url", "ws://127.0.0.1:1", "--token", "x", "--state", str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mcpp otel: cannot {reason.format(path)}")


async def test_a_state_of_another_pod_is_refused(
    sockets: SocketPod, commands: Commands, tmp_path: Path
) -> None:
    state = ExportState(pod="another", after=None)
    write_state(tmp_path / "state", msgspec.json.encode(state))
    code, _, error = await commands.run("otel", "otel", "--console", "--state", f"{tmp_path}/state")
    assert code == 1
    assert "is of the pod 'another'" in error
