"""Every Python block in the README runs, and every relative link has a target."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("spec/**/*.md")]
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


def test_the_python_blocks_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the blocks in order in one namespace, then the tests that they define."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text()
    blocks = list(PYTHON.finditer(text))
    assert blocks
    (tmp_path / "greeter.py").write_text(blocks[0][1])
    monkeypatch.syspath_prepend(tmp_path)
    namespace: dict[str, object] = {}
    for block in blocks:
        lines_before = "\n" * text.count("\n", 0, block.start(1))  # for line numbers in tracebacks
        exec(compile(lines_before + block[1], "README.md", "exec"), namespace)
    tests = [value for name, value in namespace.items() if name.startswith("test_")]
    assert tests
    for test in tests:
        assert callable(test)
        test()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_has_a_target(document: Path) -> None:
    links = [link for link in LINK.findall(document.read_text()) if "://" not in link]
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_source_file_that_is_named_exists(document: Path) -> None:
    named = re.findall(
        r"`((?:mcpp\w*|tests|docs|spec)/[\w./-]+\.(?:py|md|js))`", document.read_text()
    )
    assert [each for each in named if not (ROOT / each).exists()] == []
