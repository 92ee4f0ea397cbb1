"""The public surface is a decision: sorted, small, and all of it there."""

import ast
import subprocess
import sys
from pathlib import Path

import mcpp


def test_the_public_names_are_sorted_and_few() -> None:
    in_ruff_s_order = sorted(
        mcpp.__all__, key=lambda name: (not name.isupper(), name.islower(), name)
    )
    assert mcpp.__all__ == in_ruff_s_order
    assert len(set(mcpp.__all__)) == len(mcpp.__all__) <= 25


def test_every_public_name_is_there_and_is_listed() -> None:
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
