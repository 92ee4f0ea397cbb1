"""The Python blocks of docs/quickstart.md run, in their order."""

import re
from pathlib import Path

QUICKSTART = Path(__file__).parent.parent / "docs" / "quickstart.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_quickstart_runs() -> None:
    blocks = BLOCK.findall(QUICKSTART.read_text())
    assert len(blocks) == 2
    names: dict[str, object] = {"__name__": "quickstart"}
    for block in blocks:
        exec(block, names)
