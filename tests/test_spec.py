"""Rules and tests refer to each other: no rule without a test, no reference without a rule."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests import vectors

TESTS = Path(__file__).parent
# A rule begins its line with its number in bold (CONTRIBUTING.md).
RULE = re.compile(r"^\*\*([A-Z]-[0-9]{2,})\*\*", re.MULTILINE)


def rules() -> Counter[str]:
    return Counter(
        name for page in vectors.SPEC.glob("*.md") for name in RULE.findall(page.read_text())
    )


def names_in_tests() -> Iterator[str]:
    """Yield the rules named by every `pytest.mark.rule(...)`."""
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.rule":
                yield from (ast.literal_eval(argument) for argument in node.args)


def names() -> set[str]:
    in_vectors = {vector.rule for kind in ("valid", "invalid") for vector in vectors.load(kind)}
    return in_vectors | set(names_in_tests())


def test_every_rule_has_a_test() -> None:
    assert sorted(set(rules()) - names()) == []


def test_every_rule_named_by_a_test_exists() -> None:
    assert sorted(names() - set(rules())) == []


def test_rule_numbers_are_unique() -> None:
    assert [name for name, count in rules().items() if count > 1] == []


def test_the_pattern_finds_rules() -> None:
    assert {"E-01", "E-29"} <= set(rules())
