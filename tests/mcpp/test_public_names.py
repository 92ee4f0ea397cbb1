"""The public surface: `mcpp.__all__`, and the modules that the docstring of `mcpp` lists."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import mcpp

ROOT = Path(mcpp.__file__).parent.parent
PUBLIC_MODULES = re.findall(r"^- (mcpp(?:\.\w+)+):", mcpp.__doc__ or "", re.MULTILINE)


def test_the_public_names_are_sorted_and_unique() -> None:
    in_ruff_s_order = sorted(
        mcpp.__all__, key=lambda name: (not name.isupper(), name.islower(), name)
    )
    assert mcpp.__all__ == in_ruff_s_order
    assert len(set(mcpp.__all__)) == len(mcpp.__all__)


def test_every_public_name_exists_and_is_listed() -> None:
    for name in mcpp.__all__:
        assert getattr(mcpp, name) is not None
    assert set(mcpp.__all__) <= set(dir(mcpp))
    assert set(mcpp.__all__) == set(mcpp._HOME_OF)


def test_type_checkers_see_what_python_sees() -> None:
    tree = ast.parse(Path(mcpp.__file__).read_text())
    seen = {
        alias.name: node.module if node.module != "mcpp" else f"mcpp.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mcpp")
        for alias in node.names
    }
    assert seen == mcpp._HOME_OF


def test_importing_the_package_imports_nothing_else() -> None:
    probe = (
        "import sys; old = set(sys.modules); import mcpp; print(*sorted(set(sys.modules) - old))"
    )
    modules = subprocess.check_output([sys.executable, "-c", probe], text=True).split()
    assert [name for name in modules if name.startswith(("mcpp", "msgspec", "anyio"))] == ["mcpp"]


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_a_public_module_says_what_it_is(name: str) -> None:
    assert import_module(name).__doc__


def described(value: Any) -> Iterator[tuple[str, object]]:
    """Yield a public object and its public methods and properties."""
    yield value.__qualname__, value
    if inspect.isclass(value):
        for name, member in vars(value).items():
            if not name.startswith("_") and (callable(member) or isinstance(member, property)):
                yield f"{value.__qualname__}.{name}", member


@pytest.mark.parametrize("name", sorted(set(mcpp.__all__) - {"PROTOCOL", "filters"}))
def test_a_public_name_and_its_methods_are_documented(name: str) -> None:
    undocumented = [
        where for where, member in described(getattr(mcpp, name)) if not inspect.getdoc(member)
    ]
    assert undocumented == []


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each name of `mcpp` that a file imports, with its module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and re.match(r"mcpp(\.|$)", node.module or ""):
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((a.name, "") for a in node.names if re.match(r"mcpp(\.|$)", a.name))


def is_public(module: str, name: str) -> bool:
    if module == "mcpp":
        names = {*mcpp.__all__, "__version__", ""}
        return name in names or f"mcpp.{name}" in PUBLIC_MODULES
    if f"{module}.{name}" in PUBLIC_MODULES:
        return True
    return module in PUBLIC_MODULES and not name.startswith("_")


def test_our_agents_use_only_the_public_surface() -> None:
    internal = [
        f"{path.relative_to(ROOT)}: from {module} import {name}"
        for path in sorted((ROOT / "mcpp_agents").rglob("*.py"))
        for module, name in imports(path)
        if not is_public(module, name)
    ]
    assert internal == []
