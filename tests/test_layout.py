"""The layout: directions of imports, sizes of folders, and conventions that a reader relies on."""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import mcpp

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
# Where the entry points of a group are: regular expressions for the names of their modules.
ENTRY_MODULES = {
    "scripts": r"mcpp\.cli\.console",
    "mcpp.commands": r"(\w+\.)+commands",
    "mcpp.demo": r"mcpp_agents\.demo\.{name}",
    "mcpp.testing": r"mcpp_gateway\.testing",
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENTRY_POINTS: dict[str, dict[str, str]] = {
    "scripts": PROJECT["scripts"],
    **PROJECT["entry-points"],
}
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
NOT_MODULES = set(mcpp.__all__) - {"filters"}
OWN_LOGGER = re.compile(r"logger|_silent|_\w+_logger")
LOGGER_NAME = re.compile(r"'mcpp(\.[a-z0-9_]+)+'")

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
    for path in [*SOURCES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]:
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


def imports_of_mcpp(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, module and name for each name that a file imports from a module of `mcpp`."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mcpp":
            yield from ((node.lineno, node.module or "", alias.name) for alias in node.names)


def is_defined_in(module: str, name: str) -> bool:
    path = ROOT / module.replace(".", "/")
    if (path / f"{name}.py").exists() or (path / name).is_dir():
        return True
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return any(
        (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name)
        or (isinstance(node, DEFINITIONS) and node.name == name)
        for node in ast.walk(parsed(file))
    )


def test_the_sdk_imports_names_from_the_module_that_defines_them() -> None:
    wrong = [
        f"{relative(path)}:{line}: from {module} import {name}"
        for path in PACKAGES["mcpp"].rglob("*.py")
        for line, module, name in imports_of_mcpp(path)
        if not is_defined_in(module, name)
    ]
    assert wrong == []


def test_the_gateway_imports_no_name_from_the_root_of_the_sdk() -> None:
    wrong = [
        f"{relative(path)}:{line}: from mcpp import {name}"
        for path in PACKAGES["mcpp_gateway"].rglob("*.py")
        for line, module, name in imports_of_mcpp(path)
        if module == "mcpp" and name in NOT_MODULES
    ]
    assert wrong == []


def test_agents_and_benchmarks_import_names_as_a_user_would() -> None:
    """`import mcpp` or `from mcpp import Pod`, one of them in a file; never `mcpp.client.pod`."""
    wrong = []
    for path in [*PACKAGES["mcpp_agents"].rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]:
        imports = list(imports_of_mcpp(path))
        wrong += [
            f"{relative(path)}:{line}: from {module} import {name}"
            for line, module, name in imports
            if mcpp._HOME_OF.get(name) == module
        ]
        names = [name for _, module, name in imports if module == "mcpp" and name in NOT_MODULES]
        if names and any(
            isinstance(node, ast.Import) and "mcpp" in {alias.name for alias in node.names}
            for node in ast.walk(parsed(path))
        ):
            wrong.append(f"{relative(path)}: both `import mcpp` and from mcpp import {names}")
    assert wrong == []


@pytest.mark.parametrize("group", ENTRY_MODULES)
def test_every_entry_point_is_a_function_or_class_in_an_entry_module(group: str) -> None:
    wrong = {
        name: entry
        for name, entry in ENTRY_POINTS[group].items()
        if not re.fullmatch(ENTRY_MODULES[group].format(name=name), entry.split(":")[0])
        or not is_defined_in(*entry.split(":"))
    }
    assert wrong == {}


def test_every_group_of_entry_points_has_its_entry_modules() -> None:
    assert ENTRY_POINTS.keys() == ENTRY_MODULES.keys()


def test_every_module_named_commands_is_an_entry_module() -> None:
    entries = {entry.split(":")[0] for entry in ENTRY_POINTS["mcpp.commands"].values()}
    modules = {
        relative(path.with_suffix("")).replace("/", ".")
        for path in SOURCES
        if path.name == "commands.py"
    }
    assert modules == entries


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
