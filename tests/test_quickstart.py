"""The Python blocks of docs/quickstart.md run, as the files that it names."""

import re
import subprocess
import sys
from pathlib import Path

QUICKSTART = Path(__file__).parent.parent / "docs" / "quickstart.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_quickstart_runs(tmp_path: Path) -> None:
    agent, check = BLOCK.findall(QUICKSTART.read_text())
    (tmp_path / "greeter.py").write_text(agent)
    (tmp_path / "try_greeter.py").write_text(check)
    ended = subprocess.run([sys.executable, "try_greeter.py"], cwd=tmp_path, capture_output=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
