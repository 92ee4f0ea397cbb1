"""The layout: directions of imports, sizes of folders, and conventions that a reader relies on."""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
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
MAX_MODULES = 12
OWN_LOGGER = re.compile(r"logger|_silent|_\w+_logger")
LOGGER_NAME = re.compile(r"'mcpp(\.[a-z_]+)+'")

SOURCES = [path for folder in PACKAGES.values() for path in sorted(folder.rglob("*.py"))]
FOLDERS = sorted({path.parent for path in SOURCES})
TEST_FOLDERS = sorted({path.parent for path in (ROOT / "tests").rglob("*.py")})
SCRIPT_FOLDERS = sorted({path.parent for path in PACKAGES["mcpp_gateway"].rglob("*.js")})


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported_roots(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_never_imports_its_siblings(package: str) -> None:
    found = {
        relative(path): sorted(roots)
        for path in PACKAGES[package].rglob("*.py")
        if (roots := FORBIDDEN[package].intersection(imported_roots(path)))
    }
    assert found == {}


@pytest.mark.parametrize("folder", [*FOLDERS, *TEST_FOLDERS, *SCRIPT_FOLDERS], ids=relative)
def test_a_folder_has_at_most_twelve_modules(folder: Path) -> None:
    files = (path.name for path in folder.iterdir() if path.suffix in (".py", ".js"))
    modules = [name for name in files if name != "__init__.py"]
    assert len(modules) <= MAX_MODULES, sorted(modules)


@pytest.mark.parametrize("folder", FOLDERS, ids=relative)
def test_every_package_says_what_belongs_in_it(folder: Path) -> None:
    assert ast.get_docstring(parsed(folder / "__init__.py"))


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_every_module_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(parsed(path))


def test_no_class_name_is_defined_twice() -> None:
    places = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{relative(path)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_all_imports_are_absolute() -> None:
    relative_imports = [
        f"{relative(path)}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative_imports == []


def test_every_command_is_in_a_module_named_commands() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entries = project["entry-points"]["mcpp.commands"]
    modules = {name: entry.split(":")[0].rsplit(".")[-1] for name, entry in entries.items()}
    assert {name: module for name, module in modules.items() if module != "commands"} == {}


def loggers(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (assigned name, logger name as source) for each `logging.getLogger(...)`.

    The assigned name is empty inside functions, where logging is configured.
    """
    tree = parsed(path)
    assigned = {
        id(node.value): ast.unparse(node.targets[0])
        for node in tree.body
        if isinstance(node, ast.Assign)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("getLogger"):
            yield assigned.get(id(node), ""), ", ".join(map(ast.unparse, node.args))


def test_a_module_s_logger_is_called_logger_and_named_by_area() -> None:
    """`logger = logging.getLogger("mcpp.<area>")`; underscored ones are handed to libraries."""
    wrong = [
        f"{relative(path)}: {assigned} = getLogger({name})"
        for path in SOURCES
        for assigned, name in loggers(path)
        if assigned and not (OWN_LOGGER.fullmatch(assigned) and LOGGER_NAME.fullmatch(name))
    ]
    assert wrong == []


def test_functions_take_a_logger_only_to_configure_all_of_them() -> None:
    wrong = [
        f"{relative(path)}: getLogger({name})"
        for path in SOURCES
        for assigned, name in loggers(path)
        if not assigned and name not in ("", "'mcpp'")
    ]
    assert wrong == []


def test_every_benchmark_can_be_run_by_its_name() -> None:
    folder = ROOT / "benchmarks"
    for file in folder.glob("[!_]*.py"):
        tree = parsed(file)
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert "run" in names, file.name
        assert ast.get_docstring(tree), file.name
