"""`mcpp tail` and `mcpp send`: output, arguments, filters and exit codes."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import connect

import mcpp
from mcpp import FilterError, filters
from mcpp.cli.shorthand import Search, read_filter, read_filters, read_search
from mcpp.errors import NoAnswerError
from mcpp.protocol import rpc
from mcpp.testing import MemoryPod
from mcpp.testing.strategies import envelopes
from mcpp_agents.cli.display import Palette, clean, describe, format_answer
from mcpp_agents.send.exchange import send, wait_for_answer
from mcpp_agents.tail.follow import follow, follow_past
from mcpp_agents.tail.line_printer import LinePrinter
from tests.agents.processes import BOUND, MCPP, Commands
from tests.interaction.conftest import SocketPod


@given(envelopes())
def test_the_line_of_any_envelope_has_no_control_characters(envelope: mcpp.Envelope) -> None:
    line = Palette(coloured=False).line(envelope)
    assert clean(line) == line


@given(st.text())
def test_cleaning_removes_control_characters(text: str) -> None:
    assert not {"\x1b", "\r", "\x08", "\x9b", "\u202e"} & set(clean(text))


@pytest.mark.parametrize(
    ("kind", "payload", "line"),
    [
        ("chat", {"text": "two\nlines"}, "two\nlines"),
        ("chat", {"text": "\x1b[2Jgone"}, "\ufffd[2Jgone"),
        ("chat", "no chat at all", "chat no chat at all"),
        ("reflection", {"thought": "hm"}, "hm"),
        ("mcp/withdraw", {}, "withdraws the proposal"),
        ("mcp/withdraw", {"reason": "late"}, "withdraws the proposal: late"),
        ("mcp/reject", {"reason": "no", "text": "too old"}, "rejects the proposal: too old"),
        ("mcp/reject", [1], "rejects the proposal: no reason given"),
        ("conclusion", {"decision": {"go": True}}, '∎ {"go":true}'),
        (
            "mcp/request:tools/call:read",
            {"method": "tools/call", "params": {"name": "read", "arguments": {"path": "a b"}}},
            'calls read(path="a b")',
        ),
        (
            "mcp/response:tools/call:read",
            {"result": {"content": [{"type": "text", "text": "no"}], "isError": True}},
            "read: failed, no",
        ),
        (
            "mcp/response:tools/call:search",
            {"result": {"content": [], "_meta": {"context": {"lifecycle": "transient",
                                                              "summary": "9 hits"}}}},
            "search: 9 hits",
        ),
        ("mcp/notification:notifications/progress", {"params": {"progress": 1, "total": 3}}, "1/3"),
        ("system/presence", {"event": "join", "participant": {"id": "bob"}}, "bob joins"),
        ("acme/thing", {"a": 1}, 'acme/thing {"a":1}'),
    ],
)  # fmt: skip
def test_a_line_describes_the_envelope(kind: str, payload: object, line: str) -> None:
    assert describe(mcpp.new_envelope(kind, payload, sender="a")) == line


@pytest.mark.rule("C-11")
def test_only_the_gateway_announces_that_a_context_has_expired() -> None:
    payload = {"event": "expired", "context": {"id": "c", "type": "plan"}, "messages": 1}
    announced, forged = (
        describe(mcpp.new_envelope("system/context", payload, sender=sender))
        for sender in ("system:gateway", "a")
    )
    assert announced == "plan c has expired"
    assert forged.startswith("system/context {")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("main", {"main": True}),
        ("kind:mcp/* not from:noisy", {"all": [{"kind": "mcp/*"}, {"not": {"from": "noisy"}}]}),
        ("context:c1", {"context": "c1"}),
        ("context:c1+", {"context": "c1", "descendants": True}),
        ("", {"all": []}),
        ("nothing", {"any": []}),
        ("not not main", {"main": True}),
        (
            "main or kind:mcp/* and not from:noisy",
            {"any": [{"main": True}, {"all": [{"kind": "mcp/*"}, {"not": {"from": "noisy"}}]}]},
        ),
        (
            "not (to:a or to:b)from:c",
            {"all": [{"not": {"any": [{"to": "a"}, {"to": "b"}]}}, {"from": "c"}]},
        ),
        ('{"to": "a"}', {"to": "a"}),
    ],
)
def test_filters_are_read_from_terms_or_json(text: str, expected: dict[str, object]) -> None:
    assert read_filter(text).to_json() == expected


def test_several_filters_form_a_union() -> None:
    assert read_filters(["main", "type:reasoning"]) == read_filter("main") | read_filter(
        "type:reasoning"
    )
    assert read_filters([]) is None


@pytest.mark.parametrize(
    "text",
    [
        "mian", "kind:", "not", "from:a b:c", "main:", "context:+", "main or", "and main", "(main",
        "main)", "()", "(" * 5000 + "main" + ")" * 5000, "from:a " * 5000,
    ],
)  # fmt: skip
def test_an_invalid_filter_expression_is_refused(text: str) -> None:
    with pytest.raises(FilterError):
        read_filter(text)


@pytest.mark.rule("P-37")
@pytest.mark.parametrize(
    "text",
    ['text:"refund"', "since:10:00", "until:now kind:chat", "main or text:x", "not since:1h"],
)
def test_what_is_for_the_past_is_refused_in_a_live_filter(text: str) -> None:
    with pytest.raises(FilterError, match="is for the past: use `mcpp search`"):
        read_filter(text)
    with pytest.raises(FilterError):
        filters.parse({text.partition(":")[0]: "x"})


@pytest.mark.rule("P-37")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Search()),
        ("refund", Search(text="refund")),
        ('late "two words" pay*', Search(text='late "two words" pay*')),
        ('text:"two words" and text:x', Search(text='"two words" x')),
        ("since:10:00", Search(since="10:00")),
        ('since:"2h ago" until:yesterday x', Search(text="x", since="2h ago", until="yesterday")),
        ("x from:bob", Search(filters.parse({"all": [{"from": "bob"}]}), "x")),
        ("not kind:mcp/*", Search(filters.parse({"all": [{"not": {"kind": "mcp/*"}}]}))),
        (
            "(from:a or (to:b)) type:t",
            Search(filters.parse({"all": [{"any": [{"from": "a"}, {"to": "b"}]}, {"type": "t"}]})),
        ),
        ("main conclusions fromage:x", Search(text="main conclusions fromage:x")),
        ('"or" "not', Search(text='"or" "not')),
    ],
)
def test_a_search_has_words_conditions_and_times(text: str, expected: Search) -> None:
    assert read_search(text) == expected


@pytest.mark.rule("P-37")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a or b", "into brackets"), ("not", "missing after not"), ("not refund", "conditions"),
        ("since:", "needs a value"), ('text:""', "needs a value"), ("not since:1h", "negated"),
        ("since:1h since:2h", "twice"), ("(from:a", "unmatched"), ("from:a)", "unmatched"),
        ("(text:a)", "for the past"), ("from:", "could match"), ("(" * 5000, "unmatched"),
        ("(" * 5000 + "main" + ")" * 5000, "deep"), ("from:a " * 5000, "parts"),
    ],
)  # fmt: skip
def test_an_invalid_search_is_refused(text: str, problem: str) -> None:
    with pytest.raises(FilterError, match=problem):
        read_search(text)


@given(st.text())
def test_any_text_is_a_search_or_a_filter_error(text: str) -> None:
    try:
        read_search(text)
    except FilterError as error:
        assert error.reason


def test_the_tree_draws_each_context_as_a_branch() -> None:
    outer = mcpp.new_context("reasoning", id="outer", metadata={"about": "safety"})
    inner = mcpp.new_context("workflow", id="inner", parent="outer")
    lines = LinePrinter(Palette(coloured=False), tree=True)
    rendered = [
        line[9:]
        for context, text in ((None, "main"), (outer, "deep"), (inner, "deeper"), (outer, "back"))
        for line in lines.render(
            mcpp.new_envelope("chat", {"text": text}, sender="a", context=context)
        )
    ]
    assert rendered == [
        "a  main",
        "┌ reasoning outer (about=safety)",
        "│ a ‹reasoning#outer›  deep",
        "│ ┌ workflow inner",
        "│ │ a ‹workflow#inner›  deeper",
        "│ a ‹reasoning#outer›  back",
    ]


def test_an_answer_to_a_context_names_it() -> None:
    reasoning = mcpp.new_context("reasoning", id="reason-789")
    lines = LinePrinter(Palette(coloured=False))
    lines.render(mcpp.new_envelope("reflection", {"thought": "hm"}, sender="a", context=reasoning))
    denied = {"error": "Operation denied after security analysis"}
    kind = "mcp/response:tools/call"
    answer = mcpp.new_envelope(kind, denied, sender="a", to=["b"], correlation_id="reason-789")
    [line] = lines.render(answer)
    assert " → b on ‹reasoning#on-789›  tools/call: failed, Operation denied after" in line
    # The type is known even where an envelope does not repeat it.
    later = mcpp.new_envelope(
        "reflection", {}, sender="a", context=mcpp.new_context(id="reason-789")
    )
    assert " ‹reasoning#on-789›  " in lines.render(later)[0]


@pytest.mark.anyio
@pytest.mark.parametrize("limits", [{"messages_per_second": 0}])
async def test_without_live_messages_the_whole_history_is_shown(pod: MemoryPod) -> None:
    async with pod.connect("alice") as alice:
        for number in range(2000):  # more than a participant's buffer holds
            await alice.send("chat", {"text": str(number)}, wait=False)
    shown: list[mcpp.Envelope] = []
    async with pod.connect("bob", last=5000, own=True) as bob:
        await follow(bob, shown.append, live=False)
    texts = [envelope.payload["text"] for envelope in shown if envelope.kind == "chat"]
    assert texts == [str(number) for number in range(2000)]


@pytest.mark.anyio
async def test_the_last_messages_are_counted_after_filtering(pod: MemoryPod) -> None:
    async with pod.connect("bob") as bob:
        await bob.context("reasoning", id="r").send("reflection", {"thought": "mine"})
        for number in range(5):
            await bob.send("chat", {"text": str(number)})
            async with pod.connect("alice") as alice:  # presence events bypass the filter
                await alice.send("reflection", {"thought": "for you"}, to=["bob"])
    shown: list[mcpp.Envelope] = []
    wanted = filters.kind("chat")
    async with pod.connect("bob", filter=wanted, last=1000, own=True) as bob:
        await follow(bob, shown.append, live=False, filter=wanted, last=3)
    assert [one.payload for one in shown] == [{"text": "2"}, {"text": "3"}, {"text": "4"}]
    shown.clear()
    wanted = read_filter("type:reasoning")
    async with pod.connect("bob", filter=wanted, own=True) as bob:
        await bob.send("reflection", {"thought": "no type named"}, context="r")
        with anyio.move_on_after(0):  # buffered messages are shown without waiting
            await follow(bob, shown.append, filter=wanted, last=3)
    assert [one.payload for one in shown] == [{"thought": "no type named"}]


@pytest.mark.anyio
async def test_tail_prints_matching_messages_until_ctrl_c(
    sockets: SocketPod, commands: Commands
) -> None:
    async with sockets.connect("alice") as alice:
        await alice.send("chat", {"text": "before"})
        async with commands.start("bob", "tail", "--json", "--filter", "kind:chat") as tail:
            assert json.loads(await tail.line())["payload"] == {"text": "before"}
            await alice.send("reflection", {"thought": "unseen"})
            sent = await alice.send("chat", {"text": "after"})
            assert mcpp.decode((await tail.line()).strip()) == sent
            assert await tail.interrupt() == 130


@pytest.mark.anyio
@pytest.mark.rule("P-30")
async def test_a_sender_cannot_forge_lines_of_tail(sockets: SocketPod, commands: Commands) -> None:
    # On the wire, since the SDK never writes white space between members.
    forged = mcpp.encode(mcpp.new_envelope("chat", {"text": "pay her"}, sender="boss")).decode()
    plain = mcpp.encode(mcpp.new_envelope("chat", 0, sender="eve")).decode()
    text = plain.replace('"payload":0', f'"payload":[\n{forged}\r\n,\n{forged}\n]')
    sockets.add("eve")
    headers = {"Authorization": f"Bearer {sockets.token('eve')}"}
    async with connect(sockets.url, additional_headers=headers) as eve:
        await eve.send(text)
        while '"chat"' not in str(await eve.recv()):  # until the echo
            pass
    filter = ("--filter", "kind:chat")
    _, output, _ = await commands.run("bob", "tail", "--json", "--no-follow", *filter)
    assert [mcpp.decode(line) for line in output.splitlines()] == [mcpp.decode(text)]


@pytest.mark.anyio
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("arguments", [["tail"], ["tail", "--json", "--no-follow"], ["send", "hi"]])
async def test_a_full_disk_is_reported_in_one_line(
    sockets: SocketPod, commands: Commands, arguments: list[str]
) -> None:
    async with sockets.connect("alice") as alice, await anyio.open_file("/dev/full", "wb") as full:
        await alice.send("chat", {"text": "hello"})
        with anyio.fail_after(BOUND):
            ended = await anyio.run_process(
                [MCPP, *arguments],
                stdout=full.wrapped,
                env=commands.environ("bob"),
                check=False,
            )
    expected = b"mcpp: cannot write: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (1, expected)


@pytest.mark.anyio
async def test_send_sends_one_message_and_prints_its_id(
    sockets: SocketPod, commands: Commands
) -> None:
    async with sockets.connect("alice", filter=filters.kind("chat")) as alice:
        code, out, _ = await commands.run(
            "bob", "send", "--to", "alice", "--context", "c1", "--type", "task", input=b"hello\n"
        )
        message = await anext(m async for m in alice if m.kind == "chat")
        assert (code, out.strip(), message.text) == (0, message.id, "hello")
        assert message.to == ("alice",)
        assert message.context is not None
        assert (message.context.id, message.context.type) == ("c1", "task")


@pytest.mark.anyio
async def test_send_waits_for_an_answer(sockets: SocketPod, commands: Commands) -> None:
    echo = mcpp.Participant("echo")

    @echo.on("*")
    async def answer(message: mcpp.Message) -> None:
        if message.text:
            progress = {"progressToken": message.id, "progress": 1}
            await message.pod.notify("notifications/progress", progress, correlation_id=message.id)
            await message.reply(f"you said {message.text} as {message.kind}")

    async with sockets.run(echo):
        for kind in ("chat", "reflection"):
            result = await commands.run("bob", "send", "--kind", kind, "hi", "--wait", "10")
            assert result == (0, f"you said hi as {kind}\n", "")


@pytest.mark.anyio
async def test_send_calls_a_tool_and_fails_if_the_tool_does(
    sockets: SocketPod, commands: Commands
) -> None:
    files = mcpp.Participant("files")

    @files.tool
    async def read(path: str) -> str:
        if path == "missing":
            raise FileNotFoundError("no such file")
        return f"text of {path}"

    async def run(kind: str, payload: str) -> tuple[int, str, str]:
        kind = f"mcp/request:{kind}"
        options = ("--kind", kind, "--to", "files", "--wait", "10", "--json", payload)
        return await commands.run("bob", "send", *options)

    async with sockets.run(files):
        found = await run("tools/call:read", '{"params": {"arguments": {"path": "a"}}}')
        assert found == (0, "read: text of a\n", "")
        missing = await run("tools/call:read", '{"params": {"arguments": {"path": "missing"}}}')
        assert missing == (1, "read: failed, no such file\n", "")
        code, output, _ = await run("tools/list", "{}")
        assert (code, '"name":"read"' in output) == (0, True)
        code, output, _ = await run("nothing/known", "{}")
        assert (code, "does not serve this method" in output) == (1, True)


@pytest.mark.anyio
@pytest.mark.rule("P-14", "P-18")
async def test_send_accepts_an_answer_only_from_the_addressee_and_cancels_on_timeout(
    pod: MemoryPod,
) -> None:
    request = "mcp/request:tools/call:read"
    async with (
        pod.connect("bob") as bob,
        pod.connect("mallory") as mallory,
        pod.connect("files"),
    ):

        async def answer() -> None:
            async for message in mallory:
                if message.kind == request:
                    payload = rpc.response(message.id, {"content": []})
                    kind = "mcp/response:tools/call:read"
                    await mallory.send(kind, payload, correlation_id=message.id)
                    return

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer)
            sent = await send(bob, request, {"params": {}}, to=["files"])
            with pytest.raises(NoAnswerError):
                await wait_for_answer(bob, sent, 0.05)
        kind = "mcp/notification:notifications/cancelled"
        cancelled = await anext(message async for message in mallory if message.kind == kind)
        assert cancelled.correlation_id == cancelled.payload["params"]["requestId"] == sent.id


@pytest.mark.parametrize("meta", [{}, {"_meta": {"context": {"lifecycle": "transient"}}}])
def test_the_answer_to_a_call_is_not_truncated(meta: dict[str, Any]) -> None:
    text = "a line\n" * 100
    result = {"content": [{"type": "text", "text": text}]} | meta
    payload = {"jsonrpc": "2.0", "id": "1", "result": result}
    answer = mcpp.new_envelope("mcp/response:tools/call:read", payload, sender="files")
    assert format_answer(answer) == f"read: {text}"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("arguments", "input", "problem"),
    [
        (["--wait", "nan", "hi"], b"", "must be a number of seconds"),
        (["--wait", "-1", "hi"], b"", "must be a number of seconds"),
        ([], b"\xff\xfe", "standard input is not valid UTF-8"),
        (["--json", "{"], b"", "the payload is not JSON"),
        (["--kind", "mcp/request:tools/call:x", "hi"], b"", "add --json"),
    ],
)
async def test_invalid_input_is_reported_without_a_traceback(
    sockets: SocketPod, commands: Commands, arguments: list[str], input: bytes, problem: str
) -> None:
    code, _, error = await commands.run("bob", "send", *arguments, input=input)
    assert code != 0
    assert problem in error
    assert "Traceback" not in error


@pytest.mark.anyio
async def test_a_refused_envelope_is_one_line_and_a_failure(
    sockets: SocketPod, commands: Commands
) -> None:
    sockets.add("mute", [{"kind": "chat"}])
    code, out, error = await commands.run("mute", "send", "--kind", "acme/x", "--json", "{}")
    assert (code, out) == (1, "")
    assert error.count("\n") == 1
    assert "capability_violation" in error


@pytest.mark.anyio
async def test_tail_shows_what_was_said_since_a_time_and_then_live_messages(
    sockets: SocketPod, commands: Commands
) -> None:
    async with sockets.connect("alice") as alice:
        for number in range(250):  # more than a page
            await alice.send("chat", {"text": str(number)}, wait=False)
        await alice.send("reflection", {"thought": "unseen"})
        options = ("--json", "--filter", "kind:chat", "--since")
        async with commands.start("bob", "tail", *options, "1h ago") as tail:
            for number in range(250):
                assert json.loads(await tail.line())["payload"] == {"text": str(number)}
            for number in range(250, 260):
                await alice.send("chat", {"text": str(number)})
                assert json.loads(await tail.line())["payload"] == {"text": str(number)}
        result = await commands.run("bob", "tail", "--no-follow", *options, "1s ago")
        assert result[::2] == (0, "")
        code, _, error = await commands.run("bob", "tail", "--since", "soon")
        assert (code, error.count("\n")) == (1, 1)
        assert "'soon' is not a time" in error


@pytest.mark.anyio
@pytest.mark.parametrize("limits", [{"messages_per_second": 0}])
async def test_no_message_is_lost_or_repeated_between_past_and_present(pod: MemoryPod) -> None:
    async with pod.connect("alice") as alice, anyio.create_task_group() as tasks:
        said = 0

        async def talk() -> None:
            nonlocal said
            while True:
                await alice.send("chat", {"text": str(said)})
                said += 1

        tasks.start_soon(talk)
        async with pod.connect("bob", filter=filters.kind("chat"), last=0, own=True) as bob:
            shown: list[mcpp.Envelope] = []
            enough = anyio.Event()

            def show(envelope: mcpp.Envelope) -> None:
                shown.append(envelope)
                if len(shown) == 500:
                    enough.set()

            past = bob.history(filters.kind("chat"), since="1h ago")
            tasks.start_soon(partial(follow_past, bob, show, past, filter=filters.kind("chat")))
            await enough.wait()
            tasks.cancel_scope.cancel()
    assert [one.payload["text"] for one in shown[:500]] == [str(n) for n in range(500)]
