"""The core has no I/O: time and ids are passed in, so every rule is testable without a network."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Modules, and packages with all their modules. Add yours when it joins the core.
PURE = (
    "mcpp.capabilities",
    "mcpp.claims",
    "mcpp.codec",
    "mcpp.contexts",
    "mcpp.effects",
    "mcpp.envelope",
    "mcpp.errors",
    "mcpp.filters",
    "mcpp.globs",
    "mcpp.jsontext",
    "mcpp.kinds",
    "mcpp.misfits",
    "mcpp.outgoing",
    "mcpp.payloads",
    "mcpp.prompts",
    "mcpp.rpc",
    "mcpp.session",
    "mcpp.tokens",
    "mcpp.transient",
    "mcpp.tree",
    "mcpp_gateway.audiences",
    "mcpp_gateway.effects",
    "mcpp_gateway.limits",
    "mcpp_gateway.log",
    "mcpp_gateway.pod",
    "mcpp_gateway.rates",
    "mcpp_gateway.refusals",
    "mcpp_gateway.roster",
    "mcpp_gateway.tree",
    "mcpp_gateway.voice",
)
IMPURE = {
    *("anyio", "asyncio", "concurrent", "multiprocessing", "sched", "signal", "threading", "trio"),
    *("http", "select", "selectors", "socket", "ssl", "urllib", "uvloop", "websockets"),
    *("random", "secrets", "time", "uuid", "uuid6"),
    *("logging", "os", "pathlib", "subprocess", "sys", "tempfile"),
}
CLOCKS = {"now", "utcnow", "today"}


def sources(module: str) -> list[Path]:
    root = (
        ROOT
        / {"mcpp": "", "mcpp_gateway": "gateway", "mcpp_agents": "agents"}[module.split(".")[0]]
    )
    path = root.joinpath(*module.split("."))
    return sorted(path.rglob("*.py")) or [path.with_suffix(".py")]


FILES = [path for module in PURE for path in sources(module) if path.exists()]


def imported(path: Path) -> Iterator[str]:
    """Yield the full names of imported modules."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module in ("mcpp", "mcpp_gateway"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def is_pure(name: str) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in PURE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_of_the_core_imports_nothing_that_reaches_the_world(path: Path) -> None:
    assert sorted(name for name in imported(path) if name.split(".")[0] in IMPURE) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_of_the_core_imports_only_the_core_of_ours(path: Path) -> None:
    ours = {name for name in imported(path) if name.split(".")[0].startswith("mcpp")}
    assert sorted(name for name in ours if not is_pure(name)) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_of_the_core_reads_no_clock(path: Path) -> None:
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    attributes = (call.func.attr for call in calls if isinstance(call.func, ast.Attribute))
    assert CLOCKS.isdisjoint(attributes)
