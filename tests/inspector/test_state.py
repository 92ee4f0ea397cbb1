"""The page's pure modules, run in Node and compared with the SDK."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import mcpp
from mcpp import filters
from mcpp.errors import FilterError
from mcpp.live import LiveTexts
from mcpp.outcomes import usage_of
from mcpp.payloads import text_of
from mcpp.protocol.envelope import Envelope
from mcpp.protocol.tree import ContextTree
from mcpp.session.claims import ClaimRegister
from mcpp.testing.strategies import json_values
from mcpp.transient import TransientTracker, consumed, summarize, transient
from mcpp.transient.marks import cut
from mcpp.transient.tables import read_table
from mcpp_gateway.core.history.words import Words
from tests.mcpp.prompts.logs import LogBuilder, text_result
from tests.properties.random_logs import LOGS

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "mcpp_gateway" / "inspector"


class Node:
    """A Node process that runs functions of the page's modules."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def call(self, function: str, **facts: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"call": function, **facts}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    program = shutil.which("node")
    if program is None:
        pytest.skip("Node is not installed: apt-get install nodejs")
    # A copy beside a package.json: without it, Node treats .js files as CommonJS.
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(PAGE, folder, dirs_exist_ok=True)
    (folder / "package.json").write_text('{"type": "module"}')
    command = [program, str(HERE / "node" / "run.mjs"), str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Node(process)


def as_json(envelopes: list[Envelope]) -> list[Any]:
    return [json.loads(mcpp.encode(envelope)) for envelope in envelopes]


# --- live parts -----------------------------------------------------------------------------------

PARTS = st.lists(
    st.one_of(
        st.builds(
            lambda sender, about, payload: ("live/text", sender, about, payload),
            st.sampled_from("abc"),
            st.sampled_from(["x", "y", None]),
            st.fixed_dictionaries(
                {"offset": st.integers(-1, 8), "text": st.text("ab🙂é", max_size=4)},
                optional={"ended": st.booleans()},
            ),
        ),
        st.sampled_from("xy").map(lambda name: ("chat", name, None, {"text": "…"})),
        st.sampled_from("abc").map(
            lambda who: (
                "system/presence",
                who,
                None,
                {"event": "leave", "participant": {"id": who}},
            )
        ),
    ),
    max_size=12,
)


@pytest.mark.rule("P-71")
@hypothesis_settings(max_examples=100)
@given(parts=PARTS)
def test_live_parts_are_put_together_as_the_sdk_does(node: Node, parts: list[Any]) -> None:
    envelopes = []
    for number, (kind, who, about, payload) in enumerate(parts):
        id, sender = (who, "a") if kind == "chat" else (f"n-{number}", who)
        sender = "system:gateway" if kind.startswith("system/") else sender
        envelopes.append(
            mcpp.new_envelope(kind, payload, sender=sender, correlation_id=about, id=id)
        )
    texts, expected = LiveTexts(), []
    for envelope in envelopes:
        texts.observe(envelope, 0.0)
        expected.append([[text.sender, text.id, text.text] for text in texts])
    assert node.call("live", envelopes=as_json(envelopes)) == expected


@pytest.mark.rule("P-71", "G-80")
def test_a_live_part_is_no_position_and_not_in_the_log_of_the_page(node: Node) -> None:
    welcome = {"you": {"id": "ada"}, "pod": {"name": "p", "epoch": "e"}, "replayed": 0}
    said = mcpp.new_envelope("chat", {"text": "hi"}, sender="a")
    part = mcpp.new_envelope(
        "live/text", {"offset": 0, "text": "so"}, sender="a", correlation_id="later"
    )
    first = mcpp.new_envelope("system/welcome", welcome, sender="system:gateway")
    texts = [mcpp.encode(each).decode() for each in (first, said, part)]
    found = node.call("afterParts", texts=texts)
    assert found == {"classes": ["welcome", "live", "part"], "lastId": said.id, "size": 1}


# --- filters --------------------------------------------------------------------------------------

LEAVES = st.one_of(
    st.just({"main": True}),
    st.sampled_from(["reasoning", "task"]).map(lambda name: {"type": name}),
    st.sampled_from(["k1", "k2"]).map(lambda name: {"context": name}),
    st.sampled_from(["k1", "k2"]).map(lambda name: {"context": name, "descendants": True}),
    st.sampled_from(["*", "chat", "mcp/*", "*tools*call*", "a(b)+", 'x"', "re*ion"]).map(
        lambda name: {"kind": name}
    ),
    st.sampled_from(["analyst", "b"]).map(lambda name: {"from": name}),
    st.sampled_from(["crm", "c"]).map(lambda name: {"to": name}),
)
FILTERS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: {"any": parts}),
        st.lists(inner, max_size=3).map(lambda parts: {"all": parts}),
        inner.map(lambda part: {"not": part}),
    ),
    max_leaves=8,
)


@hypothesis_settings(max_examples=100)
@given(filter=FILTERS, log=LOGS)
def test_a_filter_selects_the_same_as_in_the_sdk(
    node: Node, filter: Any, log: list[Envelope]
) -> None:
    expected = [envelope.id for envelope in filters.parse(filter).select(log)]
    assert node.call("select", filter=filter, envelopes=as_json(log)) == expected


@hypothesis_settings(max_examples=100)
@given(filter=FILTERS, log=LOGS)
def test_a_filter_survives_printing_and_parsing(
    node: Node, filter: Any, log: list[Envelope]
) -> None:
    again = node.call("reprint", filter=filter)["filter"]
    expected = [envelope.id for envelope in filters.parse(filter).select(log)]
    assert [envelope.id for envelope in filters.parse(again).select(log)] == expected


@given(
    st.one_of(
        FILTERS,
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.text(max_size=5), LEAVES),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3),
                st.dictionaries(
                    st.sampled_from(["main", "any", "all", "not", "kind", "context", "x"]),
                    inner,
                    max_size=2,
                ),
            ),
            max_leaves=5,
        ),
    )
)
def test_a_filter_is_refused_exactly_if_the_gateway_refuses_it(node: Node, value: Any) -> None:
    try:
        filters.parse(value) if not isinstance(value, str) else filters.parse(json.dumps(value))
        fine = True
    except FilterError:
        fine = False
    assert (node.call("check", filter=value) is None) == fine


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"all": []}),
        ("main", {"main": True}),
        ("type:reasoning or main", {"any": [{"type": "reasoning"}, {"main": True}]}),
        (
            "main or kind:mcp/* and not from:noisy",
            {"any": [{"main": True}, {"all": [{"kind": "mcp/*"}, {"not": {"from": "noisy"}}]}]},
        ),
        ("context:k1+", {"context": "k1", "descendants": True}),
        ("~(main | to:a)", {"not": {"any": [{"main": True}, {"to": "a"}]}}),
        ('{"kind": "chat"}', {"kind": "chat"}),
    ],
)
def test_expressions_are_parsed(node: Node, text: str, expected: Any) -> None:
    assert node.call("parse", text=text) == {"filter": expected}


@pytest.mark.parametrize(
    ("text", "message", "position"),
    [
        ("main and", "Unexpected end of the expression", 8),
        ("main chat", "Unknown word “chat”", 5),
        ("main kind:x", "Expected “and” or “or” here", 5),
        ("(main", "Unclosed (", 0),
        ("main)", "Unmatched )", 4),
        ("kind:", "kind: needs a value", 5),
        ("type:a%", "$.type is not a text that could match", 0),
        ('{"kind": }', "Invalid JSON", 0),
        ("from:ä", "$.from is not a text that could match", 0),
        ("(" * 50_000 + "main", "Nested too deeply", 64),
        ("not " * 50_000 + "main", "Nested too deeply", 256),
    ],
)
def test_a_syntax_error_has_a_message_and_a_position(
    node: Node, text: str, message: str, position: int
) -> None:
    answer = node.call("parse", text=text)
    assert message in answer["message"]
    assert answer["position"] == position


def test_completion_offers_what_can_follow(node: Node) -> None:
    known = {"kind": ["chat", "mcp/*"], "from": ["ada", "analyst"]}
    assert node.call("complete", text="ma", known=known) == ["main"]
    assert node.call("complete", text="main or from:a", known=known) == ["from:ada", "from:analyst"]
    assert node.call("complete", text="main ", known=known) == ["and", "or"]
    assert "kind:" in node.call("complete", text="not ", known=known)


# --- log and tree ---------------------------------------------------------------------------------


@hypothesis_settings(max_examples=150)
@given(LOGS)
def test_badges_and_summaries_equal_those_of_the_sdk(node: Node, log: list[Envelope]) -> None:
    tracker = TransientTracker()
    for envelope in log:
        tracker.add(envelope)
    expected = []
    for envelope in log:
        tracked = tracker.find(envelope.id)
        of_it = tracked if tracked and tracked.call.response_id == envelope.id else None
        folded = of_it is not None and tracker.is_collapsible(of_it)
        summary = of_it.summary if of_it and folded else None
        expected.append([list(tracker.badges(envelope.id)), summary])
    assert node.call("track", envelopes=as_json(log)) == expected


RESOURCE = {"type": "resource", "resource": {"uri": "file:///a", "text": "a,b\n1,2\n3,4"}}
FILE = {"type": "resource", "resource": {"uri": "file:///b", "blob": ""}}
LINK = {"type": "resource_link", "uri": "file:///c", "name": "c"}
MEDIA = [{"type": "image"}, {"type": "audio"}, FILE, LINK, LINK]


@pytest.mark.rule("T-02")
@pytest.mark.parametrize("content", [[RESOURCE], [RESOURCE, *MEDIA], MEDIA, [FILE], [LINK]])
def test_summaries_of_files_and_media_equal_those_of_the_sdk(node: Node, content: Any) -> None:
    result = {"content": content}
    log = LogBuilder()
    log.run("fetch", {}, transient(result))
    log.run("store", {}, consumed(text_result("stored")))
    log.chat("analyst")
    found = [summary for _, summary in node.call("track", envelopes=as_json(log.envelopes))]
    assert list(filter(None, found)) == [summarize(result)]


CELLS = st.sampled_from(
    ["x", "", '"', '"x,y"', '"x\ny"', '"x""y"', '"x"y', "x\ry", "|", "-", " 1", " x y", "1999", "7"]
)
TEXTS = st.tuples(
    st.sampled_from(
        [
            "a,b\n",
            "a;b\n",
            "a, b\n",
            "a,1999\n",
            ",b\n",
            ",b,1999\n",
            "\ufeffa,b\n",
            "|a|b|\n|-|:-:|\n",
            '"a\nc",b\n',
            "",
        ]
    ),
    st.lists(st.lists(CELLS, max_size=3), max_size=5),
    st.sampled_from(",;|"),
    st.sampled_from(["\n", "\r\n"]),
).map(lambda drawn: drawn[0] + drawn[3].join(drawn[2].join(row) for row in drawn[1]))


@pytest.mark.rule("T-23")
@hypothesis_settings(max_examples=300)
@given(TEXTS)
@example("a,b\n" + '1,"{}"\n'.format("x\n" * 63) * 1000)
@example("a,b\n" + '1,"{}"\n'.format("x\n" * 64) * 1000)
@example("a,b\n1,2\n" + '1,"{}'.format("x\n" * 100_000))
@example("a|b\n-|-{}x\n1|2".format(" " * 100_000))
def test_a_text_is_the_same_table_as_for_the_sdk(node: Node, text: str) -> None:
    assert node.call("readTable", text=text) == read_table(text)


WORDS = st.lists(st.sampled_from(["a", " ", "\n", "wörd", "\U0001f600", "\u3000", "xy" * 9]))


@given(WORDS.map("".join), st.integers(2, 12))
def test_a_text_is_cut_as_in_the_sdk(node: Node, text: str, limit: int) -> None:
    assert node.call("cut", text=text, limit=limit) == cut(text, limit)


@given(LOGS)
def test_the_tree_equals_that_of_the_sdk(node: Node, log: list[Envelope]) -> None:
    expected = [
        [
            found.id,
            found.type,
            None if found.parent is None else found.parent.id,
            len(found.envelopes),
            list(found.participants),
            found.state,
            None if found.conclusion is None else found.conclusion.id,
            found.creator,
            found.title,
            found.progress,
        ]
        for found in ContextTree(log)
    ]
    assert node.call("tree", envelopes=as_json(log)) == expected


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["push", "push", "push", "set", "truncate"]),
            st.integers(0, 99),
            st.integers(1, 50),
        ),
        max_size=80,
    )
)
def test_heights_are_summed_correctly(node: Node, steps: Any) -> None:
    assert node.call("heights", steps=steps)
    for head in ([], [3], [4, 1, 9]):
        assert node.call("heights", steps=steps, head=head)


# --- stream ---------------------------------------------------------------------------------------


def frame(id: str, kind: str = "chat", sender: str = "ada", **members: Any) -> dict[str, Any]:
    payload = members.pop("payload", {"text": id})
    stamp = {"protocol": "mcpp/v0.1", "ts": "2026-11-16T12:00:00Z"}
    return stamp | {"id": id, "from": sender, "kind": kind, "payload": payload} | members


def welcome(epoch: str = "e1", **members: Any) -> dict[str, Any]:
    payload = {
        "you": {"id": "ada", "capabilities": []},
        "participants": [{"id": "ada", "capabilities": []}],
        "pod": {"name": "demo", "epoch": epoch},
        "limits": {},
        "contexts": [],
        "resumed": False,
        "replayed": 0,
    }
    return frame("w", "system/welcome", "system:gateway", payload=payload | members)


def test_a_short_disconnection_leaves_no_mark(node: Node) -> None:
    frames = [welcome(), frame("1"), frame("2"), welcome(resumed=True, replayed=1), frame("3")]
    found = node.call("model", frames=frames)
    assert found["rows"] == ["1", "2", "3"]
    assert "after=3" in found["query"]


def test_a_restart_and_a_gap_are_marked(node: Node) -> None:
    frames = [
        welcome(),
        frame("1"),
        welcome(replayed=1),
        frame("5"),
        welcome("e2", replayed=1),
        frame("a"),
    ]
    assert node.call("model", frames=frames)["rows"] == ["1", "gap", "5", "restart", "a"]


def test_the_oldest_envelopes_are_removed_if_there_are_too_many(node: Node) -> None:
    history = [frame(str(number)) for number in range(101)]
    rows = node.call("model", frames=[welcome(), *history], limits={"maxEntries": 100})["rows"]
    assert rows == [str(number) for number in range(11, 101)]


def test_removed_envelopes_are_not_kept_in_memory(node: Node) -> None:
    def call(number: int) -> list[dict[str, Any]]:
        kind, name = (
            "tools/call:t",
            {"name": "t", "arguments": {"said": f"{number} " + "a long word" * 50}},
        )
        asked = {"jsonrpc": "2.0", "id": f"q{number}", "method": "tools/call", "params": name}
        result = {"content": [{"type": "text", "text": "a long word" * 50}]}
        return [
            frame(f"q{number}", f"mcp/request:{kind}", to=["crm"], payload=asked),
            frame(
                f"r{number}",
                f"mcp/response:{kind}",
                "crm",
                correlation_id=f"q{number}",
                payload={"result": result | transient({}, "short")},
            ),
        ]

    frames = [welcome(), *(envelope for number in range(500) for envelope in call(number))]
    found = node.call("model", frames=frames, limits={"maxEntries": 10}, updates=False)
    assert found["kept"].count("a long word") < 20 * 50 * 3
    assert "r0" in found["kept"]


def test_direct_envelopes_are_not_positions_to_resume_from(node: Node) -> None:
    error = frame("e", "system/error", "system:gateway", payload={"error": "rate_limited"})
    found = node.call("model", frames=[welcome(position="0"), frame("1"), error])
    assert "after=1" in found["query"]
    assert found["refusals"] == ["rate_limited"]
    assert "after=0" in node.call("model", frames=[welcome(position="0")])["query"]


def test_a_message_composed_before_the_first_welcome_gets_its_sender(node: Node) -> None:
    (said,) = node.call("unconfirmed", drafts=[{"kind": "chat"}], frames=[welcome()])["texts"]
    assert (said["from"], said["kind"]) == ("ada", "chat")


@pytest.mark.rule("P-07")
def test_a_too_large_message_is_never_sent(node: Node) -> None:
    long = {"id": "long", "kind": "chat", "payload": {"text": "\u00e4" * 200}}
    short = {"id": "short", "kind": "chat", "payload": {"text": "\u00e4"}}
    limited = welcome(limits={"max_message_bytes": 500})
    found = node.call("compose", drafts=[long], frames=[limited])
    assert "bytes. The gateway accepts 500" in found["problem"]
    assert found["unconfirmed"] == 0
    assert node.call("compose", drafts=[short], frames=[limited])["unconfirmed"] == 1
    found = node.call("unconfirmed", drafts=[long], frames=[limited])
    assert found == {"since": None, "texts": [], "refusals": [["long", "too_large"]]}


def test_the_reconnection_delay_resets_only_after_a_long_connection(node: Node) -> None:
    assert node.call("delays", held=[0, 900, 900, 60_000, 0]) == [250, 500, 1000, 250, 500]
    assert node.call("delays", held=[900] * 9)[-1] == 8000


@pytest.mark.rule("C-02", "C-12", "C-14", "C-17")
def test_a_revived_context_is_open_again_with_its_creator(node: Node) -> None:
    info = {"id": "k", "type": "task", "creator": "ada"}
    events = [
        frame(event, "system/context", "system:gateway", payload={"event": event, "context": info})
        for event in ("expired", "revived")
    ]
    k: dict[str, Any] = {"context": {"id": "k", "type": "x", "parent": "y"}}
    frames = [welcome(contexts=[info]), frame("1", sender="bob", **k), *events]
    assert node.call("model", frames=frames[:-1])["states"] == {"k": "expired"}
    frames += [frame("2", "conclusion", "bob", **k)]
    found = node.call("model", frames=frames)
    assert (found["tree"], found["states"]) == (["k"], {"k": "open"})
    frames += [frame("3", "conclusion", "ada", context={"id": "k"})]
    assert node.call("model", frames=frames)["states"] == {"k": "concluded"}


def test_contexts_are_in_the_order_of_their_first_envelopes(node: Node) -> None:
    def inside(id: str, context: str, **members: str) -> dict[str, Any]:
        return frame(id, context={"id": context, **members})

    alive = [{"id": "n", "parent": "m"}, {"id": "m"}, {"id": "unheard"}]
    history = [inside("1", "old"), inside("2", "older", parent="old"), inside("3", "n", parent="m")]
    frames = [welcome(contexts=alive, replayed=3), *history]
    expected = ["unheard", "old", "older", "m", "n"]
    assert node.call("model", frames=frames)["tree"] == expected
    frames = [MAIN, welcome(), EVERYTHING, *frames]
    assert node.call("model", frames=frames)["tree"] == expected


def test_a_context_is_open_only_if_its_conclusion_would_have_been_sent(node: Node) -> None:
    inside: dict[str, Any] = {"context": {"id": "k", "type": "task"}}
    alive = [{"id": "other", "type": "reasoning"}, {"id": "k", "type": "task"}]
    said, concluded = frame("1", sender="bob", **inside), frame("2", "conclusion", "bob", **inside)

    def states(filter: dict[str, Any], *frames: dict[str, Any]) -> Any:
        frames = ({"use": filter}, welcome(contexts=alive), *frames)
        return node.call("model", frames=frames)["states"]

    unknown = {"k": "unknown", "other": "unknown"}
    assert states({"all": []}, said) == unknown | {"k": "open"}
    assert states({"all": []}) == unknown
    assert states({"type": "task"}, said) == unknown | {"k": "open"}
    assert states({"main": True}, said) == unknown
    assert states({"kind": "chat"}, said) == unknown
    assert states({"kind": "conclusion"}, concluded) == unknown | {"k": "concluded"}
    assert states({"from": "bob"}, said) == unknown
    # A later filter may hide a conclusion as well, even in a context with own messages.
    narrowed = frame("f", "system/filter", "system:gateway", payload={"filter": {"main": True}})
    assert states({"all": []}, said, narrowed) == unknown
    assert states({"all": []}, frame("1", **inside), narrowed) == unknown
    assert states({"type": "task"}, frame("1", **inside)) == unknown | {"k": "open"}


def test_a_connection_is_closed_if_a_probe_is_unanswered_and_never_by_silence_alone(
    node: Node,
) -> None:
    opening = [["sent", 0], ["check", 9], ["check", 10]]
    assert node.call("liveness", steps=opening) == [None, None, "close"]
    silence = [["sent", 0], ["received", 1], ["check", 15], ["check", 900], ["sent", 900]]
    silence += [["check", 909], ["check", 910]]
    answers = [None, None, None, "probe", None, None, "close"]
    assert node.call("liveness", steps=silence) == answers
    answered = [["sent", 0], ["received", 9], ["check", 20], ["check", 24]]
    assert node.call("liveness", steps=answered) == [None, None, None, "probe"]


def test_a_probe_changes_nothing(node: Node) -> None:
    answer = frame("f", "system/filter", "system:gateway", payload={"filter": {"all": []}})
    before, after = ([welcome(), frame("1")], [welcome(), frame("1"), answer])
    rebuilt = [node.call("model", frames=frames)["rebuilt"] for frames in (before, after)]
    assert rebuilt[0] == rebuilt[1]


def test_a_message_is_unconfirmed_until_it_is_echoed(node: Node) -> None:
    draft = {"id": "1", "kind": "chat"}
    assert node.call("unconfirmed", drafts=[draft], frames=[welcome()])["since"] == 1000
    frames = [welcome(), frame("1")]
    assert node.call("unconfirmed", drafts=[draft], frames=frames)["since"] is None
    draft = {"id": "1", "kind": "pod/filter"}
    assert node.call("unconfirmed", drafts=[draft], frames=[welcome()])["since"] is None


def test_a_reused_id_hides_nothing(node: Node) -> None:
    # The gateway accepts it once it has forgotten the first.
    found = node.call("model", frames=[welcome(), frame("1"), frame("1", sender="bob"), frame("1")])
    assert found["rows"] == ["1", "1", "1"]
    draft = {"id": "1", "kind": "chat"}
    frames = [welcome(), frame("1", sender="bob")]
    assert node.call("unconfirmed", drafts=[draft], frames=frames)["since"] == 1000


def test_replayed_envelopes_count_in_the_rates_at_their_sending_time(node: Node) -> None:
    inside: dict[str, Any] = {"context": {"id": "k"}}
    times = ["11:59:57Z", "11:59:58Z", "11:58:00Z", "12:00:00Z", "13:00:00Z"]
    frames = [welcome(replayed=4), frame("0", **inside)]
    frames += [frame(str(i)) for i in range(1, 5)]
    for one, time in zip(frames[1:], times, strict=True):
        one["ts"] = f"2026-11-16T{time}"
    rates = node.call("model", frames=frames, now=1_794_830_400_000)["rates"]
    assert rates == {"messagesPerSecond": 4 / 5, "contextsPerMinute": 1}


def test_a_wrong_clock_moves_an_envelope_only_within_the_order_of_the_log(node: Node) -> None:
    noon = 1_794_830_400_000

    def said(id: str, time: str, seconds: int | None = None, sender: str = "ada") -> dict[str, Any]:
        kind = "system/presence" if sender == "system:gateway" else "chat"
        inside = {} if kind == "system/presence" else {"context": {"id": f"k{id}"}}
        # The arrival, by a clock that is an hour ahead of the gateway's.
        came = {} if seconds is None else {"now": noon + 3_600_000 + seconds * 1000}
        return frame(id, kind, sender, **inside) | {"ts": time} | came

    def spans(*frames: dict[str, Any]) -> Any:
        found = node.call("model", frames=[*frames], now=noon + 3_600_000)["spans"]
        return {id: (start - noon) / 1000 for id, (start, _) in found.items()}

    live = spans(
        welcome(),
        said("a", "2026-11-16T12:00:01Z", 2),
        said("b", "1970-01-01T00:00:00Z", 3),
        said("c", "9999-12-31T23:59:59Z", 4),
        said("d", "2026-11-16T12:00:05Z", 60),
    )
    assert live == {"ka": 1, "kb": 1, "kc": 4, "kd": 5}
    replayed = spans(
        welcome(),
        said("e", "2026-11-16T12:00:01Z", 2),
        welcome(replayed=5),
        said("1", "2026-11-16T11:00:00Z", sender="system:gateway"),
        said("a", "9999-12-31T23:59:59Z"),
        said("b", "2026-11-16T11:00:02Z"),
        said("c", "1970-01-01T00:00:00Z"),
        said("d", "2026-11-16T11:00:03Z"),
    )
    assert replayed == {"ke": 1, "ka": 0, "kb": -3598, "kc": -3600, "kd": -3597}


def test_replayed_presence_changes_nothing_and_live_presence_does(node: Node) -> None:
    def presence(id: str, event: str, who: str) -> dict[str, Any]:
        payload = {"event": event, "participant": {"id": who, "capabilities": []}}
        return frame(id, "system/presence", "system:gateway", payload=payload)

    frames = [welcome(replayed=1), presence("1", "join", "gone"), presence("2", "join", "bob")]
    assert node.call("model", frames=frames)["present"] == ["ada", "bob"]


@pytest.mark.rule("G-64", "C-18")
def test_presence_and_expiries_of_several_are_read_one_by_one(node: Node) -> None:
    entries = [
        {"event": "join", "participant": {"id": "bob", "capabilities": []}},
        {"event": "join", "participant": {"id": "eve", "capabilities": []}},
        {"event": "leave", "participant": {"id": "bob", "capabilities": []}},
    ]
    told = frame("1", "system/presence", "system:gateway", payload={"entries": entries})
    assert node.call("model", frames=[welcome(), told])["present"] == ["ada", "eve"]
    for number, contexts in enumerate(([{"id": "k"}, {"id": "l"}], "nonsense", [None, {}])):
        expired = {"event": "expired", "contexts": contexts}
        frames = [welcome(), frame("2", context={"id": "k"}), frame("3", context={"id": "l"})]
        frames.append(frame("4", "system/context", "system:gateway", payload=expired))
        states = node.call("model", frames=frames)["states"]
        assert states == dict.fromkeys("kl", "open" if number else "expired")


def test_a_concluded_context_folds_where_it_began(node: Node) -> None:
    inside: dict[str, Any] = {"context": {"id": "k", "type": "reasoning"}}
    below: dict[str, Any] = {"context": {"id": "l", "parent": "k"}}
    frames = [
        welcome(),
        frame("1"),
        frame("2", "reflection", **inside),
        frame("3"),
        frame("4", "reflection", **below),
        frame("5", "conclusion", **inside),
        frame("6"),
    ]
    expected = ["1", "fold k", "3", "6"]
    assert node.call("model", frames=frames)["rows"] == expected
    assert node.call("model", frames=frames, updates=False)["rows"] == expected
    unfolded = node.call("model", frames=frames, folds=[["k", False]])["rows"]
    assert unfolded == ["1", "2", "3", "4", "5", "6"]
    assert node.call("model", frames=frames, search='"5"')["rows"] == ["5"]


def test_a_folded_context_counts_newer_envelopes_and_those_addressed_to_the_user(
    node: Node,
) -> None:
    inside: dict[str, Any] = {"context": {"id": "k"}, "sender": "bob"}
    other: dict[str, Any] = {"context": {"id": "l"}}
    frames = [
        welcome(),
        frame("1", to=["ada"], **inside),
        frame("2", "conclusion", **inside),
        frame("3", **other),
        frame("4", **inside),
        frame("5", to=["crm", "ada"], **inside),
        # Its rows are laid out again, together with those of the first.
        frame("6", "conclusion", **other),
    ]
    for updates in (True, False):
        folds = node.call("model", frames=frames, updates=updates)["folds"]
        assert folds == {"k": [2, 2], "l": [0, 0]}
    again = frame("7", "conclusion", **inside)
    assert node.call("model", frames=[*frames, again])["folds"]["k"] == [0, 2]


def test_a_search_ignores_how_text_was_escaped(node: Node) -> None:
    said = {"text": 'he said "caf\u00e9"\nand left'}
    frames = [welcome(), frame("1"), frame("2", payload=said)]
    assert node.call("model", frames=frames, search='said "caf\u00e9"')["rows"] == ["2"]
    assert node.call("unescaped", text=r'"caf\u00e9 \\ \"x\"\n"') == '"caf\u00e9 \\ "x"\n"'


@pytest.mark.rule("C-17")
def test_a_conclusion_by_another_participant_folds_nothing(node: Node) -> None:
    inside: dict[str, Any] = {"context": {"id": "k"}}
    frames = [welcome(), frame("1", **inside), frame("2", "conclusion", "bob", **inside)]
    assert node.call("model", frames=frames)["rows"] == ["1", "2"]


def test_a_filter_hides_earlier_envelopes_at_once(node: Node) -> None:
    answer = {"filter": {"kind": "mcp/*"}}
    ours = frame("2")
    frames = [
        welcome(),
        frame("1", sender="bob"),
        ours,
        frame("f", "system/filter", "system:gateway", payload=answer),
        frame("3", "mcp/x", "bob"),
    ]
    assert node.call("model", frames=frames)["rows"] == ["2", "3"]


MAIN = {"use": {"main": True}}
EVERYTHING: dict[str, Any] = {"use": {"all": []}}


def test_reloading_the_history_keeps_older_entries(node: Node) -> None:
    inside: dict[str, Any] = {"context": {"id": "k"}}
    frames = [MAIN, welcome(), frame("1"), frame("2"), frame("4"), EVERYTHING, welcome(replayed=3)]
    frames += [frame("2"), frame("3", **inside), frame("4"), frame("5")]
    # What was in a context between the first two is lost.
    assert node.call("model", frames=frames)["rows"] == ["1", "hole", "2", "3", "4", "5"]


def test_a_hole_is_marked_only_where_envelopes_may_be_missing(node: Node) -> None:
    inside: dict[str, Any] = {"context": {"id": "k"}, "sender": "bob"}
    loaded = [welcome(), frame("1"), frame("2"), frame("3")]

    def rows(*more: dict[str, Any]) -> Any:
        return node.call("model", frames=[*loaded, *more])["rows"]

    widened = [EVERYTHING, welcome(replayed=2)]
    assert rows(MAIN, *widened, frame("2"), frame("3")) == ["1", "2", "3"]
    assert rows(MAIN, *widened, frame("8", **inside), frame("9")) == [*"123", "hole", *"89"]
    main = [MAIN, welcome(resumed=True), frame("4"), frame("5")]
    holed = rows(*main, *widened, frame("5"), frame("6", **inside))
    assert holed == [*"1234", "hole", *"56"]
    # It stays in its place, however often the history is reloaded.
    again = [*main, *widened, frame("5"), frame("6", **inside), MAIN, welcome(resumed=True)]
    assert rows(*again, *widened, frame("5"), frame("6", **inside)) == holed
    assert rows(*again, *widened, frame("6", **inside), frame("7")) == [*holed, "7"]


def test_a_filter_loses_no_loaded_entry(node: Node) -> None:
    loaded = [welcome(), *(frame(str(number), sender="bob") for number in range(5))]
    nothing = [{"use": {"kind": "conclusion"}}, welcome()]
    frames = [*loaded, MAIN, welcome(resumed=True), *nothing]
    assert node.call("model", frames=frames)["rows"] == []  # and no hole is marked
    frames += [EVERYTHING, welcome(replayed=2), frame("3", sender="bob"), frame("4", sender="bob")]
    assert node.call("model", frames=frames)["rows"] == list("01234")
    # Not even if the gateway has nothing left.
    frames = [*loaded, MAIN, welcome("e2"), nothing[0], welcome("e2")]
    frames += [EVERYTHING, welcome("e2")]
    assert node.call("model", frames=frames)["rows"] == [*"01234", "restart"]


CONTEXTS = st.sampled_from([None, {"id": "k1", "type": "task"}, {"id": "k2"}])
USED_FILTERS = st.sampled_from([{"all": []}, {"main": True}, {"type": "task"}, {"context": "k2"}])


@given(st.lists(st.one_of(CONTEXTS, USED_FILTERS.map(lambda used: {"use": used})), max_size=40))
def test_under_any_filters_the_rows_are_correct_and_holes_are_marked(
    node: Node, steps: list[Any]
) -> None:
    said = [
        step
        if step and "use" in step
        else frame(str(i), sender="bob", context=step, ts=f"2026-11-16T12:00:{i:02}Z")
        for i, step in enumerate(steps)
    ]
    found = node.call("filtered", steps=said, welcome=welcome(), history=6)
    shown = [row for row in found["rows"] if row != "hole"]
    assert [id for id in found["wanted"] if id in shown] == shown
    assert shown[len(shown) - len(found["kept"]) :] == found["kept"]
    # What is missing is older than everything shown, or precedes a mark.
    unmarked = found["rows"][::-1]
    if "hole" in unmarked:
        unmarked = unmarked[: unmarked.index("hole")]
    missing = set(found["wanted"]) - set(shown)
    assert max(map(int, missing), default=-1) < min(map(int, unmarked), default=99)


def test_a_filter_hides_entries_before_the_gateway_confirms_it(
    node: Node,
) -> None:
    frames = [MAIN, welcome(), frame("1", sender="bob"), {"use": {"kind": "mcp/*"}}]
    assert node.call("model", frames=frames)["rows"] == []


def test_a_filter_changed_during_a_reload_hides_earlier_envelopes(
    node: Node,
) -> None:
    inside: dict[str, Any] = {"context": {"id": "k"}, "sender": "bob"}
    answer = frame("f", "system/filter", "system:gateway", payload={"filter": {"main": True}})
    frames = [MAIN, welcome(), frame("1"), EVERYTHING, welcome(replayed=2)]
    frames += [frame("2", **inside), answer, frame("3", sender="bob")]
    assert node.call("model", frames=frames)["rows"] == ["1", "hole", "3"]


def test_a_restart_is_marked_during_a_reload(node: Node) -> None:
    frames = [MAIN, welcome(), frame("1"), EVERYTHING, welcome("e2", replayed=1), frame("a")]
    assert node.call("model", frames=frames)["rows"] == ["1", "restart", "a"]


@pytest.mark.rule("P-20", "P-21")
def test_a_proposal_is_closed_only_by_a_matching_request_or_its_proposer(node: Node) -> None:
    def proposal(id: str) -> dict[str, Any]:
        payload = {"method": "tools/call", "params": {"name": "t", "arguments": {"a": 1}}}
        return frame(id, "mcp/proposal:tools/call:t", "bob", to=["crm"], payload=payload)

    def request(id: str, about: str, value: int) -> dict[str, Any]:
        params = {"name": "t", "arguments": {"a": value}}
        payload = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
        kind = "mcp/request:tools/call:t"
        return frame(id, kind, to=["crm"], payload=payload, correlation_id=about)

    frames = [
        welcome(),
        *map(proposal, "pqrs"),
        request("1", "p", 1),
        request("2", "q", 2),
        frame("3", "mcp/withdraw", "ada", correlation_id="r"),
        frame("4", "mcp/withdraw", "bob", correlation_id="s"),
    ]
    assert node.call("model", frames=frames)["open"] == ["q", "r"]


@pytest.mark.rule("P-20", "P-21")
def test_a_pending_decision_is_dropped_if_another_decided_first(node: Node) -> None:
    payload = {"method": "tools/call", "params": {"name": "t", "arguments": {}}}
    asked = frame("p", "mcp/proposal:tools/call:t", "bob", to=["crm"], payload=payload)
    request = {"id": "r", "kind": "mcp/request:tools/call:t", "to": ["crm"]}
    approval = request | {"correlation_id": "p"}
    edited = request | {"then": {"id": "o", "kind": "mcp/reject", "correlation_id": "p"}}
    withdrawn = frame("w", "mcp/withdraw", "bob", correlation_id="p")

    def sent(drafts: list[dict[str, Any]], *more: dict[str, Any]) -> Any:
        found = node.call("unconfirmed", drafts=drafts, frames=[welcome(), asked, *more])
        return [one["id"] for one in found["texts"]], found["refusals"]

    assert sent([approval]) == (["r"], [])
    assert sent([approval], withdrawn) == ([], [["r", "decided"]])
    assert sent([edited]) == (["r"], [])
    assert sent([edited], withdrawn) == ([], [["r", "decided"]])
    # The rejection follows only once the edited request is confirmed.
    assert sent([edited], frame("r", "mcp/request:tools/call:t", to=["crm"])) == (["o"], [])
    problem = {"error": "capability_violation", "message": "You may not."}
    refused = frame("e", "system/error", "system:gateway", correlation_id="r", payload=problem)
    assert sent([edited], refused) == ([], [["r", "capability_violation"]])


@pytest.mark.rule("P-21")
def test_only_the_last_rejection_of_each_participant_counts(node: Node) -> None:
    payload = {"method": "tools/call", "params": {"name": "t", "arguments": {}}}
    asked = frame("p", "mcp/proposal:tools/call:t", "bob", to=["crm"], payload=payload)

    def objection(id: str, sender: str, reason: str) -> dict[str, Any]:
        return frame(id, "mcp/reject", sender, correlation_id="p", payload={"reason": reason})

    said = [objection(f"e{number}", "eve", f"no {number}") for number in range(100)]
    frames = [welcome(), asked, objection("m", "mallory", "no " * 100_000), *said]
    (long, last) = node.call("model", frames=frames)["rejections"]["p"]
    assert len(long["reason"]) <= 240
    assert last == {"from": "eve", "reason": "no 99"}


@pytest.mark.rule("P-20", "P-21")
def test_the_recipients_response_reveals_a_decision_hidden_by_a_filter(node: Node) -> None:
    params = {"name": "t", "arguments": {}}
    payload = {"method": "tools/call", "params": params}
    asked = frame("p", "mcp/proposal:tools/call:t", "bob", to=["crm"], payload=payload)
    ours = {"jsonrpc": "2.0", "id": "r", **payload}
    kind = "mcp/request:tools/call:t"
    request = frame("r", kind, to=["crm"], payload=ours, correlation_id="p")

    def resolution(problem: Any, sender: str = "crm") -> Any:
        error = {"error": {"code": -32001, "message": problem}}
        answer = frame("a", "mcp/response:tools/call:t", sender, payload=error, correlation_id="r")
        return node.call("model", frames=[welcome(), asked, request, answer])["resolutions"]["p"]

    assert resolution("out of paper") == ["fulfilled", "ada"]
    assert resolution("already_fulfilled") == ["fulfilled", None]
    assert resolution("withdrawn") == ["withdrawn", "ada"]
    assert resolution("withdrawn", "eve") == ["fulfilled", "ada"]
    for hostile in ("constructor", "__proto__", {"toString": 1}, None):
        assert resolution(hostile) == ["fulfilled", "ada"]


def test_open_proposals_are_lost_with_the_log(node: Node) -> None:
    payload = {"method": "tools/call", "params": {"name": "t", "arguments": {}}}
    asked = frame("p", "mcp/proposal:tools/call:t", "bob", to=["crm"], payload=payload)
    assert node.call("model", frames=[welcome(), asked, welcome("e2")])["open"] == []
    again = asked | {"id": "q"}
    assert node.call("model", frames=[welcome(), asked, welcome("e2"), again])["open"] == ["q"]
    # It stays lost under all filters until the same proposal is made again.
    filters = [MAIN, welcome("e2", resumed=True), {"use": {"type": "x"}}, welcome("e2")]
    filters += [EVERYTHING, welcome("e2")]
    assert node.call("model", frames=[welcome(), asked, welcome("e2"), *filters])["open"] == []
    reused = frame("p", sender="eve")
    assert node.call("model", frames=[welcome(), asked, welcome("e2"), reused])["open"] == []
    # Its proposer received no confirmation before the restart and sends it again.
    assert node.call("model", frames=[welcome(), asked, welcome("e2"), asked])["open"] == ["p"]


# --- the past -------------------------------------------------------------------------------------

PAST_STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "hear",
                "hear",
                "load",
                "load",
                "older",
                "newer",
                "answer",
                "answer",
                "answer",
                "refuse",
                "lose",
                "locate",
                "restart",
                "around",
            ]
        ),
        st.integers(0, 40),
    ),
    max_size=60,
)


@hypothesis_settings(max_examples=300)
@given(
    steps=PAST_STEPS,
    before=st.integers(0, 40),
    query=st.sampled_from([{}, {"filter": {"context": "k1"}}, {"filter": {"main": True}}]),
    received=st.sampled_from([5, 12, 1000]),
)
def test_whatever_is_loaded_in_whatever_order_the_rows_are_correct_and_holes_are_marked(
    node: Node, steps: Any, before: int, query: Any, received: int
) -> None:
    problems = node.call(
        "past",
        steps=steps,
        before=before,
        query=query,
        welcome=welcome(),
        page=4,
        limits={"maxEntries": received},
        bounds={"maxEntries": 10, "maxChars": 10_000_000, "minEntries": 2},
    )
    assert problems == []


NOON = 1_794_830_400_000  # 2026-11-16T12:00:00Z


def test_a_page_keeps_each_senders_own_bytes(node: Node) -> None:
    texts = [
        '{"id": "1", "from": "a", "kind": "chat", "ts": "", "payload": {"n": 1e2, "s": "}],\\"["}}',
        '{ "ts":"","kind":"x" ,"id":"2","from":"b","payload":[[],{},"\\\\"], "envelope": {"a": 3}}',
    ]
    entries = ", ".join(
        f'{{"position": {i}, "time": 1.5, "envelope": {text}}}' for i, text in enumerate(texts)
    )
    odd = '{"position": "1", "envelope": {}}, 3, null, {"envelope": [1]}'
    page = f'{{"payload": {{"next": "c", "entries": [{entries}, {odd}], "epoch": "e"}}}}'
    read = node.call("page", text=page)
    assert [entry["text"] for entry in read["entries"]] == texts
    assert (read["next"], read["epoch"]) == ("c", "e")


@given(json_values())
def test_a_page_is_cut_out_of_any_json(node: Node, value: Any) -> None:
    envelope = {"id": "1", "from": "a", "kind": "chat", "ts": "t", "payload": value}
    text = json.dumps(envelope, ensure_ascii=False)
    page = json.dumps({"x": value, "payload": {"y": value, "entries": ["E"]}})
    entry = f'{{"position": 1, "time": 2, "envelope":{text}}}'
    read = node.call("page", text=page.replace('"entries": ["E"]', f'"entries": [{entry}]'))
    assert read["entries"][0]["text"] == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("refund", {"text": "refund*"}),
        ('refund "purchase order"', {"text": 'refund "purchase order"'}),
        ('text:"a b" x', {"text": '"a b" x*'}),
        ("from:ada refund*", {"text": "refund*", "filter": {"from": "ada"}}),
        (
            "kind:mcp/* and not from:crm",
            {"filter": {"all": [{"kind": "mcp/*"}, {"not": {"from": "crm"}}]}},
        ),
        ("(main or type:task)", {"filter": {"any": [{"main": True}, {"type": "task"}]}}),
        ("not main", {"text": "not main*"}),
        ("since:2026-11-16T12:00:00Z until:now", {"since": NOON / 1000, "until": NOON / 1000}),
        ("since:2h", {"since": NOON / 1000 - 7200}),
        ("https://x.y/z", {"text": "https://x.y/z*"}),
    ],
)
def test_searches_are_parsed(node: Node, text: str, expected: Any) -> None:
    found = node.call("search", text=text, now=NOON)
    whole = {"text": "", "filter": {"all": []}, "since": None, "until": None} | expected
    assert {name: found[name] for name in whole} == whole


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("since:tomorrowish", "since: needs a time"),
        ("until:", "until: needs a value"),
        ("(main", "Unclosed ("),
        ("from:\u00e4", "is not a text that could match"),
        ("(" * 50_000, "Unclosed ("),
    ],
)
def test_an_invalid_search_has_a_message(node: Node, text: str, message: str) -> None:
    assert message in node.call("search", text=text, now=NOON)["message"]


@pytest.mark.parametrize("text", ["", "  ", "?!", '"'])
def test_a_search_without_a_word_is_none(node: Node, text: str) -> None:
    assert node.call("search", text=text, now=NOON) is None


def test_moments_are_by_the_readers_calendar(node: Node) -> None:
    def moment(text: str, end: bool = False) -> Any:
        return node.call("moment", text=text, now=NOON, isEnd=end)

    day = 86_400
    midnight = moment("today")
    assert midnight <= NOON / 1000 < midnight + day
    assert moment("yesterday") == midnight - day
    assert moment("yesterday", True) == midnight
    assert moment("2026-11-14", True) == moment("2026-11-15")
    assert (
        moment("2026-11-14 10:30") == moment("2026-11-14T10:30:00") == moment("2026-11-14") + 37_800
    )
    passed, coming = moment("0:00:01"), moment("23:59:59")
    assert (passed, coming) == (midnight + 1, midnight - 1)
    assert moment("30m") == moment("30 min ago") == NOON / 1000 - 1800
    for wrong in ("", "25:00", "10:60", "2026-13-01", "2026-02-30", "10", "soon", "9" * 400):
        assert moment(wrong) is None


LATIN = ["refund", "Refund", "re-fund", "caf\u00e9", "CAFE", "order", "4471", "\u00df", "ss", "x"]
OTHERS = [
    "\u9000\u6b3e",
    "\u6211\u8981",
    "\u0928\u093f",
    "\u0e01",
    "\ud55c\uad6d",
    "\u2161",
    "\u00b2",
]
SEARCH_TEXTS = st.lists(
    st.sampled_from([*LATIN, *OTHERS, " ", "  ", "-", "_", "."]), max_size=6
).map("".join)


@hypothesis_settings(max_examples=300)
@given(query=SEARCH_TEXTS, texts=st.lists(SEARCH_TEXTS, min_size=1, max_size=3))
def test_what_is_received_is_searched_as_the_gateway_searches(
    node: Node, query: str, texts: list[str]
) -> None:
    payload = {"texts": texts, "number": 4471, "refund": None}
    context = {"id": "k", "metadata": {"title": texts[-1], "author": query}}
    found = node.call("found", text=query, payload=payload, context=context)
    text = json.dumps({"kind": "chat", "payload": payload, "context": context}).encode()
    assert found["found"] == Words.parse(found["sent"]).match(text)


def test_matches_are_highlighted_where_they_are_written(node: Node) -> None:
    said = (
        "Caf\u00e9 \ufb01x: the RE-FUND, refunded \u6211\u8981\u9000\u6b3e\u4e86 (caf\u0065\u0301)"
    )
    marked = node.call("found", text="cafe re-fund refund \u9000\u6b3e fix", payload=said)["marked"]
    assert marked == ["Caf\u00e9", "\ufb01x", "RE-FUND", "\u9000\u6b3e", "caf\u0065\u0301"]
    marked = node.call("found", text="refund", payload=said)["marked"]
    assert marked == ["refund"]


def test_the_query_of_the_past_is_what_the_view_shows(node: Node) -> None:
    everything: dict[str, Any] = {"all": []}

    def query(filter: Any, selection: Any, descendants: bool = True, search: str = "") -> Any:
        view = {"selection": selection, "descendants": descendants}
        return node.call("query", filter=filter, me="ada", view=view, search=search, now=NOON)

    assert query(everything, None) == {}
    assert query(everything, {"id": "k"}) == {"context": "k"}
    assert query(everything, {"id": "k"}, descendants=False) == {"filter": {"context": "k"}}
    always = [{"from": "ada"}, {"to": "ada"}, {"from": "system:gateway"}]
    shown = {"any": [{"type": "task"}, *always]}
    assert query({"type": "task"}, "main") == {"filter": {"all": [shown, {"main": True}]}}
    searched = query(everything, None, search="x from:bob since:2026-11-16T12:00:00Z until:now")
    bounds = {"after": NOON / 1000 - 0.001, "before": NOON / 1000}
    assert searched == {"filter": {"from": "bob"}, "text": "x*"} | bounds


def test_matches_are_counted_up_to_a_bound(node: Node) -> None:
    pages = [[90, 80], [], [70], [60, 50]]
    found = node.call("matches", pages=pages, ask=[90, 70, 50, 65])
    assert found == {"asked": 4, "count": 5, "isComplete": True, "ranks": [1, 3, 5, None]}
    found = node.call("matches", pages=pages, ask=[50], maxCount=3)
    assert found == {"asked": 3, "count": 3, "isComplete": False, "ranks": [None]}


def test_counting_goes_on_as_far_as_the_user_goes(node: Node) -> None:
    pages = [[90, 80], [70], [], [60, 50], [40]]
    found = node.call("matches", pages=pages, ask=[50], maxCount=3, countTo=[80, 50, 50])
    assert found == {"asked": 5, "count": 6, "isComplete": True, "ranks": [5]}
    found = node.call("matches", pages=pages, ask=[80], maxCount=3, countTo=[80, 70])
    assert found == {"asked": 2, "count": 3, "isComplete": False, "ranks": [2]}


@pytest.mark.rule("H-04")
def test_an_index_that_is_being_built_is_shown_with_its_share(node: Node) -> None:
    def page(start: int, indexed_to: int, end: int) -> dict[str, Any]:
        return {"entries": [], "start": start, "indexed_to": indexed_to, "end": end, "epoch": "e"}

    pages = [page(0, 0, 10_000), page(2_000, 4_000, 10_000), page(0, 9_990, 10_000), {}]
    assert node.call("indexing", pages=pages) == [0, 0.25, None, None]


UUIDS = ["01a1ebdb-46bd-7f76-916b-bf7d684cd8c3", "01a1ebdb-46bd-7f76-9999-000000" + "4cd8c3"]


def test_a_context_that_ends_like_another_one_gets_a_longer_name(node: Node) -> None:
    names = node.call("labels", ids=[*UUIDS, "task", UUIDS[0]])
    assert names == ["…4cd8c3", "…04cd8c3", "task", "…4cd8c3"]
    begin = "a-long-id-of-mallory-"
    names = node.call("labels", ids=[f"{begin}1-abcdef", f"{begin}2-abcdef", "a-long…abcdef"])
    assert len(set(names)) == 3
    assert node.call("labels", ids=["a-1", "b-2"], title="Refund") == ["Refund", "Refund b-2"]


@given(st.lists(st.text("ab…~2", min_size=1, max_size=24), max_size=30))
def test_two_contexts_never_have_the_same_name(node: Node, ids: list[str]) -> None:
    assert len(set(node.call("labels", ids=ids))) == len(set(ids))


@pytest.mark.rule("H-13")
def test_changes_of_a_replay_are_asked_for_until_they_are_answered(node: Node) -> None:
    def ask(*steps: Any) -> Any:
        return node.call("replay", steps=steps)

    paused, moved = {"state": "paused"}, {"time": 7}
    assert ask(paused, 0, moved) == {"sent": [paused, moved], "wanted": moved}
    assert ask(paused, 0, "lost") == {"sent": [paused], "wanted": {}}
    # What was not answered before the connection was lost is one request on the next one.
    found = ask({"state": "playing"}, moved, paused, "lost")
    assert found["sent"][3:] == [paused | moved] == [found["wanted"]]
    assert ask(moved, "lost", 1, "lost") == {"sent": [moved, moved], "wanted": {}}


@pytest.mark.rule("H-13")
def test_a_replay_that_was_moved_is_joined_again_at_once(node: Node) -> None:
    payload = welcome()["payload"]
    replay = payload | {"pod": payload["pod"] | {"replay": {"state": "paused"}}}
    held = [100, 100, 100]
    assert node.call("delays", held=held, code=4002, welcome=replay) == [50, 50, 50]
    assert node.call("delays", held=held, code=4002, welcome=payload) == [250, 500, 1000]
    assert node.call("delays", held=[0, 0], code=4002, welcome=replay) == [250, 500]


@pytest.mark.rule("H-10")
def test_loaded_messages_are_stale_once_something_is_erased(node: Node) -> None:
    erased = frame("x", "system/erased", "system:gateway", payload={"participant": "bob"})
    forged = frame("y", "system/erased", "bob", payload={"participant": "ada"})

    def is_stale(*frames: dict[str, Any]) -> Any:
        return node.call("model", frames=frames)["isStale"]

    assert is_stale(welcome(), frame("1"), erased)
    assert is_stale(welcome(), frame("1"), welcome(resumed=True, replayed=1), erased)
    assert not is_stale(welcome(), frame("1"), forged)
    # What is received for the first time is as it is now.
    assert not is_stale(welcome(replayed=2), frame("1"), erased)


# --- display and links ----------------------------------------------------------------------------


@given(json_values())
def test_raw_json_is_indented_without_changes(node: Node, value: Any) -> None:
    text = json.dumps(value)
    assert json.loads(node.call("indent", text=text)) == value


def test_raw_json_keeps_the_senders_numbers(node: Node) -> None:
    text = '{"a":1e2,"b":[123456789012345678901234567890,1.50],"c":{}}'
    shown = node.call("indent", text=text)
    assert "".join(shown.split()) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1, "a": 2}', True),
        ('{"x": [{"a": 1, "\\u0061": 2}]}', True),
        ('{"a": {"a": [{"a": "a"}, "a:", "\\":"]}, "b": 123456789012345678}', False),
        ('"a"', False),
    ],
)
def test_duplicate_keys_are_detected(node: Node, text: str, expected: bool) -> None:
    assert node.call("hasDuplicateKeys", text=text) is expected


def test_the_colour_of_a_name_depends_on_nothing_else(node: Node) -> None:
    names = ["ada", "analyst", "crm", "files"]
    hues = node.call("hues", names=names)
    assert len(set(hues)) == 4
    assert node.call("hues", names=names[::-1]) == hues[::-1]
    assert set(node.call("hues", names=[f"agent-{n}" for n in range(99)])) == set(range(8))


@pytest.mark.parametrize(
    "payload",
    [
        None,
        "Deny it.",
        3,
        [1, "two"],
        {},
        {"decision": "deny", "text": "It is not safe."},
        {"decision": "deny", "text": "deny"},
        {"decision": {"grant": False}, "confidence": 0.5},
        {"decision": None, "text": "It is not safe."},
        {"decision": "", "text": "", "found": [1, 2]},
        {"text": "Only this."},
        {"outcome": "failed", "error": {"type": "KeyError", "message": "'k'"}},
        {"outcome": "failed", "error": {"type": "KeyError", "message": ""}, "text": "no hotel"},
        {"outcome": "failed", "error": {"type": "KeyError"}, "found": 1},
        {"outcome": "cancelled"},
        {"outcome": "cancelled", "decision": "wait", "found": 1},
        {"outcome": "concluded", "text": "done"},
        {"outcome": "other"},
    ],
)
def test_a_conclusion_has_the_same_text_as_in_the_sdk(node: Node, payload: Any) -> None:
    conclusion = mcpp.new_envelope("conclusion", payload, sender="a")
    assert node.call("conclusion", payload=payload) == (text_of(conclusion) or "")


@pytest.mark.rule("H-10")
@pytest.mark.parametrize("payload", [None, "failed", {"outcome": "x"}, {"outcome": "failed"}])
def test_an_erased_conclusion_ends_a_context_as_in_the_sdk(node: Node, payload: Any) -> None:
    erased = mcpp.new_envelope("tombstone", payload, sender="a", context=mcpp.new_context(id="c"))
    (found,) = node.call("tree", envelopes=as_json([erased]))
    assert mcpp.ContextTree([erased])["c"].state in found


def test_progress_is_one_line(node: Node) -> None:
    params = {"progressToken": "t", "progress": 1, "total": 2, "message": "compared"}
    envelope = {"kind": "mcp/notification:notifications/progress", "payload": {"params": params}}
    read = node.call("describe", envelope=envelope)
    assert (read["label"], read["text"]) == ("progress", "1 of 2 compared")


@pytest.mark.parametrize(
    ("content", "text", "note"),
    [
        ([{"type": "resource", "resource": {"uri": "x:a", "text": "inside"}}], "inside", None),
        ([{"type": "resource_link", "uri": "x:b", "name": "b.txt"}], "b.txt: x:b", None),
        ([{"type": "resource", "resource": {"blob": "AA=="}}], "", "1 file, not shown"),
        (
            [{"type": "image"}, {"text": "a"}, {"type": "image"}, {"type": "audio"}],
            "a",
            "2 images, 1 recording, not shown",
        ),
        ([{"type": "x"}, {"type": ["y"]}], "", "2 parts of another type, not shown"),
        ([], "", "Empty result."),
    ],
)
def test_a_result_shows_its_text_and_counts_the_rest(
    node: Node, content: list[Any], text: str, note: str | None
) -> None:
    envelope = {"kind": "mcp/response:tools/call:t", "payload": {"result": {"content": content}}}
    read = node.call("describe", envelope=envelope)
    assert (read["text"], read.get("note")) == (text, note)


def test_a_failure_without_a_message_has_a_note(node: Node) -> None:
    result = {"content": [], "isError": True}
    envelope = {"kind": "mcp/response:tools/call:t", "payload": {"result": result}}
    read = node.call("describe", envelope=envelope)
    assert (read["label"], read["note"]) == ("failed", "No error message.")


def test_characters_that_reorder_text_are_escaped(node: Node) -> None:
    assert "\\u202e" in node.call("indent", text='"a\u202eb"')


# Controls, fillers, joiners, selectors, tags, non-space blanks, a lone surrogate.
HIDDEN = [0x1B, 0x9F, 0xAD, 0x34F, 0x61C, 0x115F, 0x180E, 0x200B, 0x2028, 0x202E, 0x2066, 0x2800]
HIDDEN += [0x3164, 0xD800, 0xFE0F, 0xFEFF, 0xFFA0, 0xFFF9, 0xE0041, 0xE0100]


@pytest.mark.parametrize("code", HIDDEN, ids=hex)
def test_invisible_characters_are_escaped(node: Node, code: int) -> None:
    shown = node.call("reveal", text=f"a{chr(code)}b")
    assert shown.isascii()
    assert json.loads(f'"{shown}"') == f"a{chr(code)}b"


def test_visible_characters_are_unchanged(node: Node) -> None:
    seen = "na\u00efve \u05d0\u0628 \u4e2d\U0001f600\n\tx"
    assert node.call("reveal", text=seen) == seen


def test_a_link_contains_the_view_and_a_code_is_not_a_view(node: Node) -> None:
    view = {"filter": "main or kind:a&b", "main": False, "context": "k1", "search": "ä #"}
    view["descendants"] = False
    assert node.call("view", view=view) == view
    view = {"filter": "", "main": True, "context": None, "descendants": True, "search": ""}
    assert node.call("view", view=view) == view
    assert node.call("code", fragment="#" + "a" * 22) == "a" * 22
    assert node.call("code", fragment="#filter=main&context=kkkk") is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["claim:a", "claim:b", "release:a", "release:b", "leave"]),
            st.sampled_from(["w1", "w2"]),
            st.integers(0, 9),
        ),
        max_size=30,
    )
)
@pytest.mark.rule("P-55")
def test_claims_are_held_by_the_same_as_in_the_sdk(
    node: Node, steps: list[tuple[str, str, int]]
) -> None:
    log: list[Envelope] = []
    for kind, who, which in steps:
        if kind == "leave":
            payload = {"event": "leave", "participant": {"id": who}}
            log.append(mcpp.new_envelope("system/presence", payload, sender="system:gateway"))
        else:
            about = log[-1 - which % len(log)].id if log else None
            log.append(mcpp.new_envelope(kind, {}, sender=who, correlation_id=about))
    held = ClaimRegister(log).held.values()
    expected = [[claim.name, claim.holder, claim.id] for claim in held]
    assert sorted(node.call("claims", envelopes=as_json(log))) == sorted(expected)


@pytest.mark.rule("E-30", "P-90")
def test_references_lead_to_what_was_mirrored_here(node: Node) -> None:
    for id, expected in (
        ("m1", "m1"),
        ("mcpp://ops/m1", "m1"),
        ("mcpp://sales/m1", "sales~m1"),
        ("mcpp://sales/a/b", "mcpp://sales/a/b"),
    ):
        assert node.call("localId", id=id, pod="ops") == expected
    origin = {"from": "ada", "path": ["mcpp://sales/m1", "mcpp://law/sales~m1"]}
    assert node.call("originOf", envelope={"origin": origin}) == {"from": "ada", "pod": "sales"}
    texts = ("null", "7", '"x"', "[]", '{"path": 7}', '{"path": [{"toString": 1}], "from": "x"}')
    for hostile in map(json.loads, texts):
        assert node.call("originOf", envelope={"origin": hostile}) is None
    assert node.call("originOf", envelope={"origin": {**origin, "from": ["x"]}}) is None


@pytest.mark.rule("E-30")
def test_a_context_below_one_of_another_pod_is_below_its_mirror(node: Node) -> None:
    log = [
        mcpp.new_envelope("chat", {}, sender=sender, context=mcpp.Context(id=id, parent=parent))
        for sender, id, parent in (
            ("link", "sales~task", None),
            ("bob", "here", "mcpp://sales/task"),
            ("bob", "other", "mcpp://sales/unknown"),
        )
    ]
    parents = {found[0]: found[2] for found in node.call("tree", envelopes=as_json(log))}
    assert parents["here"] == "sales~task"
    assert parents["other"] == "mcpp://sales/unknown"
    # A filter finds it by the id that the gateway knows, as the gateway does.
    for id, found in (("mcpp://sales/task", [log[1].id]), ("sales~task", [log[0].id])):
        wanted = {"context": id, "descendants": True}
        assert node.call("select", filter=wanted, envelopes=as_json(log)) == found


USAGE = {"input_tokens": 120, "output_tokens": 30, "cached_tokens": 100, "model": "m"}


@pytest.mark.rule("C-22")
@pytest.mark.parametrize(
    "usage",
    [
        USAGE,
        {},
        None,
        "many",
        [1],
        {"input_tokens": 5},
        USAGE | {"input_tokens": -1},
        USAGE | {"input_tokens": 1.5},
        USAGE | {"output_tokens": 2**40 + 1},
        USAGE | {"output_tokens": 10**40},
        USAGE | {"cached_tokens": True},
        USAGE | {"model": "\U0001f600" * 101},
        USAGE | {"model": 7},
        USAGE | {"currency": "EUR"},
    ],
)
def test_usage_is_read_as_in_the_sdk(node: Node, usage: Any) -> None:
    payload = {"text": "done", "usage": usage}
    read = usage_of(mcpp.new_envelope("conclusion", payload, sender="a"))
    expected = read and [read.input_tokens, read.output_tokens, read.cached_tokens, read.model]
    assert node.call("usage", payload=payload) == expected


@pytest.mark.rule("C-22", "C-17")
def test_tokens_are_summed_per_context_and_participant(node: Node) -> None:
    def conclude(context: str, sender: str, parent: str | None = None, **usage: Any) -> Envelope:
        payload = {"text": "x", "usage": USAGE | usage}
        described = mcpp.new_context(id=context, parent=parent)
        return mcpp.new_envelope("conclusion", payload, sender=sender, context=described)

    log = [
        conclude("inner", "bob"),
        conclude("inner", "mallory", input_tokens=10**9),  # not the creator
        conclude("inner", "bob", parent="outer", input_tokens=20),  # replaces the first
        conclude("outer", "alice", model="n"),
    ]
    assert node.call("tokens", envelopes=as_json(log)) == {
        "contexts": {"outer": [140, 60, 200], "inner": [20, 30, 100]},
        "participants": {"bob": {"m": [20, 30, 100]}, "alice": {"n": [120, 30, 100]}},
    }


@pytest.mark.rule("C-22")
def test_a_participant_that_names_ever_new_models_has_a_short_list(node: Node) -> None:
    log = []
    for number in range(50):
        payload = {"text": "x", "usage": USAGE | {"model": f"m{number}"}}
        context = mcpp.new_context(id=f"c{number}")
        log.append(mcpp.new_envelope("conclusion", payload, sender="bob", context=context))
    models = node.call("tokens", envelopes=as_json(log))["participants"]["bob"]
    assert len(models) == 11
    assert models["others"] == [40 * 120, 40 * 30, 40 * 100]
