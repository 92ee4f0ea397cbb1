"""Times as people write them."""

import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpp.client.factory import local_now
from mcpp.errors import TimeError
from mcpp.times import FORMS, parse_time, read_timestamp

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 17, 14, 30, tzinfo=BERLIN)


@pytest.mark.rule("P-34")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", "2026-11-17T14:30:00+01:00"),
        ("10:00", "2026-11-17T10:00:00+01:00"),
        ("9:05:30", "2026-11-17T09:05:30+01:00"),
        ("14:30", "2026-11-17T14:30:00+01:00"),
        ("14:31", "2026-11-16T14:31:00+01:00"),  # the latest that is not in the future
        ("today", "2026-11-17T00:00:00+01:00"),
        ("Today 23:00", "2026-11-17T23:00:00+01:00"),
        ("yesterday", "2026-11-16T00:00:00+01:00"),
        (" yesterday   18:30 ", "2026-11-16T18:30:00+01:00"),
        ("2h ago", "2026-11-17T12:30:00+01:00"),
        ("2h", "2026-11-17T12:30:00+01:00"),
        ("90 minutes ago", "2026-11-17T13:00:00+01:00"),
        ("1h30m", "2026-11-17T13:00:00+01:00"),
        ("1.5 hours ago", "2026-11-17T13:00:00+01:00"),
        ("3d", "2026-11-14T14:30:00+01:00"),
        ("1 week ago", "2026-11-10T14:30:00+01:00"),
        ("2026-11-01", "2026-11-01T00:00:00+01:00"),
        ("2026-11-01T10:00", "2026-11-01T10:00:00+01:00"),
        ("2026-11-01 10:00:01.5", "2026-11-01T10:00:01.500000+01:00"),
        ("2026-11-01t10:00z", "2026-11-01T10:00:00+00:00"),
        ("2026-07-01T10:00", "2026-07-01T10:00:00+02:00"),
        ("2026-11-01T10:00-05:00", "2026-11-01T10:00:00-05:00"),
    ],
)
def test_a_time_is_read_as_seen_now(text: str, expected: str) -> None:
    assert parse_time(text, NOW).isoformat() == expected


@pytest.mark.rule("P-34")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("today", "2026-11-18T00:00:00+01:00"),
        ("yesterday", "2026-11-17T00:00:00+01:00"),
        ("yesterday 0:00", "2026-11-16T00:00:00+01:00"),
        ("2026-10-25", "2026-10-26T00:00:00+01:00"),
        ("2026-11-01T00:00", "2026-11-01T00:00:00+01:00"),
        ("10:00", "2026-11-17T10:00:00+01:00"),
    ],
)
def test_a_day_that_ends_a_period_is_included(text: str, expected: str) -> None:
    assert parse_time(text, NOW, is_end=True).isoformat() == expected


@pytest.mark.rule("P-34")
@pytest.mark.parametrize(
    "text",
    ["", "ago", "10", "25:00", "10:60", "soon", "2x ago", "h", "-2h", "yesterday noon", "tomorrow",
     "2026-13-01", "10:00 ago", "٣h", "1" * 1000, "9" * 9 + "w",
     "10:00\n11:00x", "nowago", "2hago3"],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(TimeError) as caught:
        parse_time(text, NOW)
    assert len(str(caught.value)) < 250


@given(st.text())
def test_only_a_time_error_escapes(text: str) -> None:
    try:
        assert parse_time(text, NOW).tzinfo is not None
    except TimeError as error:
        assert error.text == text[:64]


def test_every_form_of_the_help_is_read() -> None:
    for form in FORMS.split(", "):
        parse_time(form, NOW)


@pytest.mark.parametrize("text", ["0:30", "2:30", "10:00", "23:59"])
def test_a_time_of_day_is_never_in_the_future_and_less_than_a_day_and_an_hour_ago(
    text: str,
) -> None:
    for hours in range(24 * 7):  # over the change of the clocks on 25 October
        now = (datetime(2026, 10, 22, tzinfo=UTC) + timedelta(hours=hours)).astimezone(BERLIN)
        found = parse_time(text, now)
        assert timedelta() <= now.astimezone(UTC) - found.astimezone(UTC) <= timedelta(hours=25)


def test_hours_ago_are_hours_over_a_change_of_the_clocks() -> None:
    now = datetime(2026, 10, 25, 12, tzinfo=BERLIN)  # at 03:00 it became 02:00
    assert parse_time("12h ago", now).isoformat() == "2026-10-25T01:00:00+02:00"
    assert parse_time("yesterday", now).isoformat() == "2026-10-24T00:00:00+02:00"


def test_a_datetime_without_a_zone_is_in_that_of_now() -> None:
    naive = datetime(2026, 7, 1, 10)
    assert parse_time(naive, NOW).isoformat() == "2026-07-01T10:00:00+02:00"
    assert parse_time(NOW, local_now()) is NOW
    with pytest.raises(ValueError, match="zone"):
        parse_time("now", naive)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_the_local_zone_changes_its_clocks(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        local = local_now().tzinfo
        assert local is not None
        for month in range(1, 13):
            there = datetime(2026, month, 1, 12, tzinfo=ZoneInfo(zone))
            assert parse_time(f"2026-{month:02}-01T12:00", local_now()) == there
            assert there.astimezone(local).isoformat() == there.isoformat()
    finally:
        monkeypatch.undo()
        time.tzset()


def test_every_timestamp_that_an_envelope_may_have_is_a_time_that_can_be_compared() -> None:
    texts = ("0000-02-29T00:00:00Z", "0001-01-01T00:00:00+23:59", "2026-11-17T14:30:00.123456789Z")
    year_0, year_1, today = (read_timestamp(text) for text in texts)
    assert max(year_0, year_1) < today == datetime(2026, 11, 17, 14, 30, 0, 123456, UTC)
    assert max(year_0.timestamp(), year_1.timestamp()) < 0
    assert read_timestamp("9999-12-31T23:59:59-23:59") > today
