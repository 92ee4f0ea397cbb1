"""The direction of dependencies: the SDK at the bottom, gateway and agents side by side."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "mcpp": ROOT / "mcpp",
    "mcpp_gateway": ROOT / "mcpp_gateway",
    "mcpp_agents": ROOT / "mcpp_agents",
}
FORBIDDEN = {
    "mcpp": {"mcpp_gateway", "mcpp_agents"},
    "mcpp_gateway": {"mcpp_agents"},
    "mcpp_agents": {"mcpp_gateway"},
}


def imported_roots(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_never_imports_its_siblings(package: str) -> None:
    found = {
        str(path.relative_to(ROOT)): sorted(roots)
        for path in PACKAGES[package].rglob("*.py")
        if (roots := FORBIDDEN[package].intersection(imported_roots(path)))
    }
    assert found == {}


def test_the_folders_that_hold_packages_are_not_packages_themselves() -> None:
    assert not (ROOT / "gateway" / "__init__.py").exists()
    assert not (ROOT / "agents" / "__init__.py").exists()


def test_every_benchmark_can_be_run_by_its_name() -> None:
    folder = ROOT / "benchmarks"
    for file in folder.glob("[!_]*.py"):
        tree = ast.parse(file.read_text())
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert "run" in names, file.name
        assert ast.get_docstring(tree), file.name
