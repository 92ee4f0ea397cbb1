"""Savings by collapsing: the goals are met and the documented figures are current."""

import re
from pathlib import Path

import pytest

from benchmarks.transient import (
    SCENARIOS,
    Scenario,
    compare,
    open_context,
    open_context_row,
    row,
)

ROOT = Path(__file__).parents[3]
GOALS = {  # of the last prompt and of all inputs
    "source: 132 records, 9 pages, sequential": (-0.80, -0.65),
    "40 × 50 records, sequential": (-0.95, -0.90),
}


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_scenario_meets_its_goal_and_its_documented_figures(scenario: Scenario) -> None:
    without, within = compare(scenario)
    final, inputs = GOALS.get(scenario.name, (0, 0))
    assert within.final / without.final - 1 <= final
    assert within.input / without.input - 1 <= inputs
    assert within.cost / without.cost - 1 <= 0.15
    line = row(scenario.name, without, within)
    assert line in (ROOT / "docs" / "prompts.md").read_text()
    saved = [figure.replace("%", " %") for figure in re.findall(r"[−+]\d+%", line)]
    assert f" | {' | '.join(saved)} |" in (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_a_summary_of_an_open_context_saves_what_is_documented() -> None:
    without, within = open_context()
    assert within < without * 0.15
    assert open_context_row(without, within) in (ROOT / "docs" / "prompts.md").read_text()
