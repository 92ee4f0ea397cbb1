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
from mcpp import errors

ROOT = Path(mcpp.__file__).parent.parent
PUBLIC_MODULES = re.findall(r"^- (mcpp(?:\.\w+)+):", mcpp.__doc__ or "", re.MULTILINE)


def in_ruff_s_order(name: str) -> tuple[bool, bool, str]:
    return not name.isupper(), name.islower(), name


def test_the_public_names_are_sorted_and_unique() -> None:
    assert mcpp.__all__ == sorted(mcpp.__all__, key=in_ruff_s_order)
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
def test_a_public_module_says_what_it_is_and_which_names_are_public(name: str) -> None:
    module = import_module(name)
    assert module.__doc__
    assert module.__all__ == sorted(module.__all__, key=in_ruff_s_order)
    assert [each for each in module.__all__ if not hasattr(module, each)] == []
    assert [each for each in module.__all__ if each.startswith("_")] == []


def test_the_reference_lists_the_public_modules_and_names() -> None:
    chapter = (ROOT / "docs" / "reference.md").read_text().split("## Exceptions")[0]
    names, modules = (
        [
            name
            for row in re.findall(rf"^\| (`{start}.*?) \|", table, re.MULTILINE)
            for name in re.findall(r"`([\w.]+)`", row)
        ]
        for start, table in zip(("", "mcpp"), chapter.split("| module |"), strict=True)
    )
    assert sorted(names) == sorted(mcpp.__all__)
    assert sorted(name for name in modules if name.startswith("mcpp.")) == sorted(PUBLIC_MODULES)


def test_the_reference_lists_every_exception() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    chapter = text.split("## Exceptions")[1].split("\n## ")[0]
    listed = re.findall(r"^\| [↳ ]*`([\w.]+)`", chapter, re.MULTILINE)
    expected = {*errors.__all__} | {
        f"{module}.{name}"
        for module in PUBLIC_MODULES
        for name in import_module(module).__all__
        if module != "mcpp.errors" and is_error(getattr(import_module(module), name))
    }
    assert sorted(listed) == sorted(expected)


def is_error(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, mcpp.McppError)


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
    return module in PUBLIC_MODULES and (not name or name in import_module(module).__all__)


def module_attributes(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each attribute of a public module that a file uses, with the module."""
    modules = {
        name: f"{module}.{name}"
        for module, name in imports(path)
        if f"{module}.{name}" in PUBLIC_MODULES
    }
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in modules:
            yield modules[ast.unparse(node.value)], node.attr


def test_our_agents_use_only_the_public_surface() -> None:
    internal = [
        f"{path.relative_to(ROOT)}: {module}.{name}"
        for path in sorted((ROOT / "mcpp_agents").rglob("*.py"))
        for module, name in (*imports(path), *module_attributes(path))
        if not is_public(module, name)
    ]
    assert internal == []
