"""The adapters and decorators for other frameworks, in an environment that has these.

Each pins requirements of its own, so they are not in the extra `dev`: `make setup-frameworks`
installs them beside the SDK without extras.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venvs" / "frameworks" / "bin" / "python"
CHECKS = (
    Path(__file__).with_name("framework_checks.py"),
    ROOT / "tests" / "mcpp" / "transient" / "fastmcp_checks.py",
)
ADAPTERS = ROOT / "mcpp_agents" / "adapters"
FRAMEWORKS = {"agents", "langchain", "langchain_core", "langgraph", "pydantic_ai"}
BASE = {"anyio", "mcpp", "mcpp_agents", "msgspec"}


@pytest.mark.slow
def test_agents_and_tools_of_other_frameworks_work() -> None:
    if not PYTHON.exists() or not (PYTHON.parents[1] / ".installed").exists():
        pytest.skip("the frameworks are not installed: make setup-frameworks")
    done = subprocess.run(
        [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHECKS],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^[0-9]+ passed in", done.stdout, re.MULTILINE), done.stdout


def imports(path: Path) -> set[str]:
    """Return the modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_the_adapters_import_only_the_sdk_and_their_framework() -> None:
    """Not even by way of our other agents: some frameworks need an older `mcp` than we do."""
    seen: set[Path] = set()
    wanted = list(ADAPTERS.glob("*.py"))
    foreign = set()
    while wanted:
        path = wanted.pop()
        seen.add(path)
        for name in imports(path):
            root = name.partition(".")[0]
            if root not in BASE | FRAMEWORKS | sys.stdlib_module_names:
                foreign.add((path.name, name))
            file = ROOT / f"{name.replace('.', '/')}.py"
            if root == "mcpp_agents" and file.exists() and file not in seen:
                wanted.append(file)
    assert foreign == set()
