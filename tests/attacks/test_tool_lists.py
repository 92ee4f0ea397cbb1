"""A participant whose list of tools is huge, costly to check, endless or always changing."""

from typing import Any

import anyio
import pytest
from jsonschema import Draft202012Validator, SchemaError
from mcp import Client

import mcpp
from mcpp import ToolCall
from mcpp.testing import MemoryPod
from mcpp_agents import toolbox
from mcpp_agents.mcp_server.server import PodServer
from mcpp_agents.mcp_server.shared_pod import SharedPod
from mcpp_agents.model.apis.openai_chat import _definition
from mcpp_agents.model.tool_definitions import select_tools
from mcpp_agents.tool_schemas import is_valid_schema
from mcpp_agents.toolbox import _MAX_LIST_BYTES, Toolbox
from tests.attacks.conftest import at_most

pytestmark = pytest.mark.anyio
UNLIMITED = {"messages_per_second": 0, "context_messages_per_second": 0}
SHORT_AND_LONG = [5, pytest.param(20, marks=pytest.mark.torture)]


def tool(number: int, size_bytes: int) -> dict[str, Any]:
    """Return a definition of about this size, with many properties to check."""
    part = {"type": "string", "enum": ["a", "b"], "description": "x" * 20}
    properties = {f"p{n}": part for n in range(size_bytes // 80)}
    return {"name": f"t{number}", "inputSchema": {"type": "object", "properties": properties}}


def hostile(pages: int, tools: int, size_bytes: int) -> mcpp.Participant:
    """Return a participant with so many pages of tools."""
    agent = mcpp.Participant("hostile")

    @agent.method("tools/list")
    async def list_tools(params: dict[str, Any], call: ToolCall) -> Any:
        page = int(params.get("cursor", 0))
        found = [tool(page * tools + number, size_bytes) for number in range(tools)]
        return {"tools": found, **({"nextCursor": str(page + 1)} if page + 1 < pages else {})}

    return agent


def honest() -> mcpp.Participant:
    agent = mcpp.Participant("honest")

    @agent.tool
    async def search(query: str) -> str:
        return query

    return agent


@pytest.mark.rule("P-45")
@pytest.mark.parametrize("pages", SHORT_AND_LONG)
async def test_a_huge_list_costs_a_model_little_and_hides_no_other(pages: int) -> None:
    pod = MemoryPod(limits=UNLIMITED)
    async with pod.run(hostile(pages, 40, 17_000)), pod.run(honest()), pod.connect("model") as me:
        with at_most(2 + pages / 10, "listing"):
            listed = await Toolbox(me, grace_seconds=20).list_tools()
        assert "honest__search" in listed
        assert sum(each.size_bytes for each in listed.values()) <= _MAX_LIST_BYTES + 1000
        with at_most(0.5, "a question"):  # was 43 s
            selected = select_tools(list(listed.values()), _definition, 127)
        assert "honest__search" in [each["function"]["name"] for each in selected]


@pytest.mark.rule("P-45")
@pytest.mark.parametrize("pages", SHORT_AND_LONG)
async def test_a_huge_list_costs_an_mcp_client_little(pages: int) -> None:
    pod = MemoryPod(limits=UNLIMITED)
    async with pod.run(hostile(pages, 40, 17_000)), pod.run(honest()), pod.connect("ide") as ide:
        link = SharedPod(ide)
        link.toolbox.grace_seconds = 20
        server = PodServer(link)
        async with Client(server.server) as client:
            for most in (6.0, 3.0):  # was 110 s; the second time the verdicts are known
                names, cursor = list[str](), None
                with at_most(most, "tools/list"):
                    while True:
                        page = await client.list_tools(cursor=cursor)
                        names += [each.name for each in page.tools]
                        cursor = page.next_cursor
                        if cursor is None:
                            break
                assert "honest__search" in names
                assert len(names) == len(set(names))


@pytest.mark.rule("P-45")
async def test_a_tool_that_is_too_long_is_left_out_and_the_others_are_listed() -> None:
    pod = MemoryPod()
    agent = mcpp.Participant("odd")

    @agent.method("tools/list")
    async def list_tools(params: dict[str, Any], call: ToolCall) -> Any:
        odd = [{"name": "n" * 600}, 7, {"name": 7}, tool(1, 100_000)]
        return {"tools": [*odd, tool(2, 100)]}

    async with pod.run(agent), pod.connect("me") as me:
        listed = await Toolbox(me, grace_seconds=20).list_tools()
    assert [each.tool for each in listed.values()] == ["t2"]


@pytest.mark.rule("P-45")
async def test_the_longest_lists_are_left_out_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolbox, "_MAX_TOOLBOX_BYTES", 100_000)
    pod = MemoryPod()
    async with pod.run(hostile(1, 4, 30_000)), pod.run(honest()), pod.connect("me") as me:
        assert list(await Toolbox(me, grace_seconds=20).list_tools()) == ["honest__search"]


@pytest.mark.rule("P-45")
async def test_a_list_that_always_changes_is_announced_once_a_second() -> None:
    pod = MemoryPod(limits=UNLIMITED)
    announced = 0

    class Changes:
        async def publish(self, event: object) -> None:
            nonlocal announced
            announced += 1

    async with pod.connect("mallory") as mallory, pod.connect("ide", own=True) as ide:
        link = SharedPod(ide)
        server = PodServer(link)
        server._subscriptions._bus = Changes()  # type: ignore[assignment]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.listen)
            tasks.start_soon(server.announce_changes)
            for _ in range(300):
                await mallory.notify("notifications/tools/list_changed")
            await mallory.send("chat", {"text": "last"})
            while not any(one.kind == "chat" for one in link.handlers._log):  # noqa: ASYNC110
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    assert 1 <= announced <= 5


@pytest.mark.parametrize(
    "schema",
    [
        {}, True, {"type": "object"}, {"type": "objec"}, {"properties": []}, {"minLength": -1},
        {"pattern": "("}, {"properties": {"a": {"patternProperties": {"[": {}}}}}, {"$ref": "#/x"},
        {"$schema": "http://nowhere.invalid/x"}, {"$schema": 5}, {"required": "a"}, {"enum": 1},
        {"items": [{}]}, {"definitions": {"a": {"type": 1}}}, {"anyOf": []}, {"minimum": "1"},
    ],
)  # fmt: skip
def test_schemas_are_judged_as_by_the_reference_validator(schema: Any) -> None:
    try:
        Draft202012Validator.check_schema(schema)
        expected = True
    except SchemaError:
        expected = False
    assert is_valid_schema(schema) is expected
    assert is_valid_schema(schema) is expected  # from the cache
