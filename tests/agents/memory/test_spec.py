"""The tables of spec/memory.md equal those in the code."""

import re
from pathlib import Path

import pytest

from mcpp_agents.memory.bus.extraction import KINDS_BY_TYPE
from mcpp_agents.memory.vocabulary import (
    FACETS,
    INTENTS,
    KINDS,
    LAYERS,
    Intent,
    emphasis,
    facet_of,
    section_order,
)

ROOT = Path(__file__).parents[3]
SPEC = (ROOT / "spec" / "memory.md").read_text()


def table(first_heading: str) -> list[list[str]]:
    """Return the cells of the table with this first heading."""
    lines = SPEC[SPEC.index(f"\n| {first_heading} |") + 1 :].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.rule("M-03")
def test_the_kinds_are_those_of_the_spec() -> None:
    spelled = {kind: words(facet)[0] for facet, _, kinds in table("facet") for kind in words(kinds)}
    assert spelled == dict(KINDS)
    assert {words(facet)[0]: title for facet, title, _ in table("facet")} == dict(FACETS)
    assert all(facet_of(kind) == facet for kind, facet in spelled.items())


@pytest.mark.rule("M-22")
def test_the_intents_are_those_of_the_spec() -> None:
    names: list[Intent] = []
    for intent, stressed, played_down in table("intent"):
        name = next(each for each in INTENTS if each == words(intent)[0])
        names.append(name)
        assert section_order(name)[: len(words(stressed))] == tuple(words(stressed))
        if name != "general":
            assert {emphasis(name, facet).factor for facet in words(stressed)} == {1.0}
            assert {emphasis(name, facet).factor for facet in words(played_down)} == {0.84}
    assert tuple(names) == INTENTS


@pytest.mark.rule("M-23")
def test_the_layers_are_those_of_the_spec() -> None:
    spelled = {words(row[0])[0]: tuple(map(float, row[1:])) for row in table("layer")}
    assert spelled == {name: tuple(map(float, layer)) for name, layer in LAYERS.items()}


@pytest.mark.rule("M-31")
def test_the_context_types_are_those_of_the_spec() -> None:
    assert {words(a)[0]: words(b)[0] for a, b in table("context type")} == KINDS_BY_TYPE
