"""The lines that an operator sees about a full disk."""

import pytest

from mcpp_gateway.space_report import SpaceReport

FULL, AGAIN = "no space left for the log: envelopes are refused", "the log has space again"


@pytest.mark.rule("G-55")
def test_a_full_disk_and_its_end_are_one_line_each(caplog: pytest.LogCaptureFixture) -> None:
    report = SpaceReport("demo")
    for second in range(300):
        report.check(float(second), accepting=not 10 <= second < 200)
    assert caplog.messages == [FULL, AGAIN]
    assert vars(caplog.records[1])["seconds"] == 190


def test_a_disk_that_is_full_again_and_again_is_reported_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    report = SpaceReport("demo")
    for second in range(120):
        report.check(float(second), accepting=second % 4 < 2)
    assert caplog.messages == [FULL, AGAIN] * 2
