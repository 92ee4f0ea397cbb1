"""The core has no I/O: time and ids are arguments, so every rule is testable without a network.

Location determines purity: all modules in the folders below and all modules directly in `mcpp/`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PURE_FOLDERS = (
    "mcpp/protocol",
    "mcpp/session",
    "mcpp/prompts",
    "mcpp/transient",
    "mcpp_gateway/core",
)
IMPURE = {
    *("anyio", "asyncio", "concurrent", "multiprocessing", "sched", "signal", "threading", "trio"),
    *("http", "select", "selectors", "socket", "ssl", "urllib", "uvloop", "websockets"),
    *("random", "secrets", "time", "uuid", "uuid6"),
    *("logging", "os", "pathlib", "subprocess", "sys", "tempfile"),
    *("dbm", "fcntl", "fileinput", "glob", "importlib", "io", "mmap", "shutil", "sqlite3"),
}
IMPURE_BUILTINS = {"__import__", "breakpoint", "input", "open", "print"}
CLOCKS = {"now", "utcnow", "today"}

FILES = [
    *sorted((ROOT / "mcpp").glob("[!_]*.py")),
    *(path for folder in PURE_FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))),
]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PURE = {module_name(path) for path in FILES}
PACKAGES = {module_name(path) for path in ROOT.glob("mcpp*/**/__init__.py")}


def imported(path: Path) -> Iterator[str]:
    """Yield the full names of imported modules."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module in PACKAGES - PURE:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_pure_module_imports_nothing_with_side_effects(path: Path) -> None:
    names = set(imported(path)) - {"urllib.parse"}  # which only reads and writes texts
    assert sorted(name for name in names if name.split(".")[0] in IMPURE) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_pure_module_imports_only_pure_modules_of_ours(path: Path) -> None:
    ours = {name for name in imported(path) if name.split(".")[0].startswith("mcpp")}
    assert sorted(ours - PURE) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_pure_module_reads_no_clock(path: Path) -> None:
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    attributes = (call.func.attr for call in calls if isinstance(call.func, ast.Attribute))
    assert CLOCKS.isdisjoint(attributes)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_pure_module_uses_no_builtin_with_side_effects(path: Path) -> None:
    names = {
        node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)
    }
    assert IMPURE_BUILTINS.isdisjoint(names)


def test_every_pure_folder_exists() -> None:
    assert all((ROOT / folder / "__init__.py").exists() for folder in PURE_FOLDERS)
