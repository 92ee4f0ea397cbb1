"""Participants that have left or are silent leave no errors in a trace when asked for tools."""

from collections.abc import Iterator

import anyio
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import mcpp
from mcpp import tracing
from mcpp.testing import MemoryPod
from mcpp_agents.toolbox import Toolbox
from tests.agents.processes import BOUND

pytestmark = [pytest.mark.anyio, pytest.mark.rule("O-06")]


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    made, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    tracing.enable(provider)
    yield made
    tracing.disable()


def failed(exporter: InMemorySpanExporter) -> list[ReadableSpan]:
    spans = exporter.get_finished_spans()
    return [span for span in spans if span.status.status_code is StatusCode.ERROR]


async def until_absent(pod: mcpp.Pod, name: str) -> None:
    while name in pod.participants:
        await anext(pod)


async def test_a_participant_that_has_left_is_not_asked_for_its_tools(
    exporter: InMemorySpanExporter,
) -> None:
    pod = MemoryPod()
    with anyio.fail_after(BOUND):
        async with pod.connect("asker") as asker:
            toolbox = Toolbox(asker)
            async with pod.connect("guest"):
                while "guest" not in asker.participants:
                    await anext(asker)
            await until_absent(asker, "guest")
            toolbox._request("guest")
            await toolbox.list_tools()
    assert exporter.get_finished_spans() == ()


async def test_a_participant_that_leaves_while_it_is_asked_is_no_error(
    exporter: InMemorySpanExporter,
) -> None:
    pod = MemoryPod()
    with anyio.fail_after(BOUND):
        async with pod.connect("asker") as asker, anyio.create_task_group() as tasks:

            async def ask() -> None:
                with pytest.raises(mcpp.AbsentError):
                    await asker.request("guest", "tools/list")

            async with pod.connect("guest") as guest:
                tasks.start_soon(ask)
                async for message in guest:
                    if message.kind.endswith("tools/list"):
                        break
    (span,) = exporter.get_finished_spans()
    assert (span.name, failed(exporter)) == ("tools/list", [])


async def test_a_participant_that_does_not_answer_before_the_asker_is_done_is_no_error(
    exporter: InMemorySpanExporter,
) -> None:
    pod = MemoryPod()
    with anyio.fail_after(BOUND):
        async with pod.connect("silent") as silent, pod.connect("asker") as asker:
            assert await Toolbox(asker, grace_seconds=0.0).list_tools() == {}
            while not (await anext(silent)).kind.endswith("tools/list"):
                pass
    (span,) = exporter.get_finished_spans()
    assert (span.name, failed(exporter)) == ("tools/list", [])
