"""Shared configuration: Hypothesis profiles, and encodable reports."""

import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

# No deadlines: a shared machine may be slow. CI runs are deterministic.
settings.register_profile("standard", deadline=None, derandomize="CI" in os.environ)
settings.register_profile("quick", settings.get_profile("standard"), max_examples=25)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "standard"))


# A shell starts background jobs with SIGINT ignored, and `nohup` ignores SIGHUP. The commands under
# test would inherit that; they get the default action of a signal that has a handler here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape lone surrogates in logs: they would end the worker process."""
    report = yield
    report.sections = [
        (title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections
    ]
    return report


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give slow tests ten minutes and torture tests an hour; leave these out by default."""
    if "torture" not in config.option.markexpr:
        items[:] = [item for item in items if not item.get_closest_marker("torture")]
    for item in items:
        if item.get_closest_marker("timeout"):
            continue
        if item.get_closest_marker("torture"):
            item.add_marker(pytest.mark.timeout(3600))
        elif item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(600))
