"""spec/memory.md and the code say the same, and every rule has a test that names it."""

import re
from pathlib import Path

from mcpp_agents.memory.listener import KINDS_BY_TYPE
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
    """The cells of the table that begins with a heading."""
    lines = SPEC[SPEC.index(f"\n| {first_heading} |") + 1 :].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_rule_is_named_by_a_test_and_every_name_is_a_rule() -> None:
    rules = set(re.findall(r"^- \*\*(M-\d\d)\*\*", SPEC, re.MULTILINE))
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert set(re.findall(r"\bM-\d\d\b", tests)) == rules


def test_the_kinds_are_those_of_the_spec() -> None:
    """M-03"""
    spelled = {kind: words(facet)[0] for facet, _, kinds in table("facet") for kind in words(kinds)}
    assert spelled == dict(KINDS)
    assert {words(facet)[0]: title for facet, title, _ in table("facet")} == dict(FACETS)
    assert all(facet_of(kind) == facet for kind, facet in spelled.items())


def test_the_intents_are_those_of_the_spec() -> None:
    """M-22"""
    names: list[Intent] = []
    for intent, stressed, played_down in table("intent"):
        name = next(each for each in INTENTS if each == words(intent)[0])
        names.append(name)
        assert section_order(name)[: len(words(stressed))] == tuple(words(stressed))
        if name != "general":
            assert {emphasis(name, facet).factor for facet in words(stressed)} == {1.0}
            assert {emphasis(name, facet).factor for facet in words(played_down)} == {0.84}
    assert tuple(names) == INTENTS


def test_the_layers_are_those_of_the_spec() -> None:
    """M-23"""
    spelled = {words(row[0])[0]: tuple(map(float, row[1:])) for row in table("layer")}
    assert spelled == {name: tuple(map(float, layer)) for name, layer in LAYERS.items()}


def test_the_context_types_are_those_of_the_spec() -> None:
    """M-31"""
    assert {words(a)[0]: words(b)[0] for a, b in table("context type")} == KINDS_BY_TYPE
