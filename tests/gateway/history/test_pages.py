"""Over all pages of a query every matching entry occurs exactly once, whatever is appended."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpp.filters import everything, parse
from mcpp_gateway.core.history.pages import Page
from mcpp_gateway.core.history.query import HistoryError, parse_query
from tests.gateway.history.sources import ENTRIES, FILTERS, RandomLog, expected, queries


@pytest.mark.slow  # where syncs are slow
@pytest.mark.rule("H-03", "H-06", "H-08")
@pytest.mark.parametrize("kind", ["memory", "file"])
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_pages_hold_every_matching_entry_exactly_once(kind: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = RandomLog(Path(folder))
        try:
            _read_all(log, kind, data)
        finally:
            log.close()


def _read_all(log: RandomLog, kind: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(0, 4))):
        log.add(data.draw(st.lists(ENTRIES, max_size=6)))
    query = data.draw(queries(len(log.entries)))
    hears = data.draw(st.just(everything) | FILTERS.map(parse))
    work = data.draw(st.sampled_from([1, 700, 1 << 20]))
    first_end = len(log.entries)
    if kind == "file" and data.draw(st.booleans()):
        log.wait_until_indexed()
    found: list[int] = []
    cursor: dict[str, Any] = {}
    while True:
        page = log.page(kind, query | cursor, hears, max_work_bytes=work)
        assert len(page.found) <= query.get("limit", 100)
        for position, time, entry in page.found:
            assert entry is not None
            assert (log.entries[position].text, log.times[position]) == (entry.text, time)
            found.append(position)
        assert (page.start, page.end) == (0, len(log.entries))
        if page.rest is None:
            break
        cursor = {"cursor": page.rest.cursor}
        log.add(data.draw(st.lists(ENTRIES, max_size=2)))
    if query.get("order", "newest") == "newest":
        assert found == expected(log, query, hears, first_end)[::-1]
    else:
        assert found == expected(log, query, hears, len(log.entries))


@pytest.fixture
def log(tmp_path: Path) -> Any:
    made = RandomLog(tmp_path)
    made.add([("alice", None, "chat", None, ["refund"])] * 30)
    yield made
    made.close()


def positions(page: Page) -> list[int]:
    return [found.position for found in page.found]


@pytest.mark.rule("H-05")
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_page_is_bounded_by_bytes_and_by_work_and_goes_on(log: RandomLog, kind: str) -> None:
    one = len(log.entries[0].text)
    page = log.page(kind, {}, max_bytes=3 * one)
    assert positions(page) in ([29, 28, 27], [29, 28, 27, 26])
    assert page.rest is not None
    page = log.page(kind, {"filter": {"not": {"kind": "chat"}}}, max_work_bytes=1000)
    assert positions(page) == []
    assert page.rest is not None
    page = log.page(kind, {"order": "oldest"}, in_time=lambda: False)
    assert positions(page) == [0]
    assert page.rest is not None


@pytest.mark.rule("H-06")
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_what_is_read_does_not_depend_on_the_words_of_what_may_not_be_heard(
    log: RandomLog, kind: str
) -> None:
    log.add([("bob", None, "chat", None, ["order"])] * 30)
    log.wait_until_indexed()
    hears = parse({"from": "bob"})  # and not what alice says of refunds
    ends = []
    for word in ("refund", "zebra"):
        looks = 0

        def look() -> bool:
            nonlocal looks
            looks += 1
            return True

        page = log.page(kind, {"text": word}, hears, max_work_bytes=12_000, in_time=look)
        assert positions(page) == []
        ends.append((page.rest, looks))
    assert ends[0] == ends[1]
    assert ends[0][0] is not None, "the bound of work is within the log"


@pytest.mark.rule("H-03")
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_the_last_page_has_no_cursor(log: RandomLog, kind: str) -> None:
    assert log.page(kind, {"limit": 30}).rest is None
    assert log.page(kind, {"limit": 30, "order": "oldest"}).rest is None
    page = log.page(kind, {"limit": 29})
    assert page.rest is not None
    assert positions(log.page(kind, {"cursor": page.rest.cursor})) == [0]


@pytest.mark.rule("H-02")
@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("filter", []),
        ("filter", {"nope": 1}),
        ("context", "a b"),
        ("context", 1),
        ("text", 1),
        ("text", "x" * 1001),
        ("text", "a " * 100),
        ("after", "a b"),
        ("after", True),
        ("before", []),
        ("before", 10**400),
        ("limit", 0),
        ("limit", 501),
        ("limit", 1.5),
        ("limit", True),
        ("order", "sideways"),
        ("cursor", "x"),
        ("cursor", 3),
        ("cursor", "9" * 30 + "-"),
    ],
)
def test_a_query_that_cannot_be_answered_names_its_member(member: str, value: object) -> None:
    with pytest.raises(HistoryError) as caught:
        parse_query({member: value})
    assert caught.value.member == member


@pytest.mark.rule("H-02")
@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize("member", ["after", "before"])
def test_an_id_that_is_not_in_the_log_is_an_error(log: RandomLog, kind: str, member: str) -> None:
    with pytest.raises(HistoryError, match=f"{member} is not an envelope of the log"):
        log.page(kind, {member: "unknown"})


@pytest.mark.rule("H-02")
def test_null_is_absence_and_unknown_members_are_refused() -> None:
    assert parse_query({"text": None, "after": None}) == parse_query(None) == parse_query({})
    with pytest.raises(HistoryError, match="typo is not a member"):
        parse_query({"typo": 1})
    with pytest.raises(HistoryError, match="payload must be an object"):
        parse_query([])
