"""The Autobahn testsuite against the gateway's WebSocket; `make setup-autobahn` installs it.

It is written for Python 2. Its cases on compression (12, 13) are not for a gateway that has none,
and those on large messages (9) take minutes: `docs/reference.md` has the results of both.
"""

import json
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.edge.echo_gateway import echo_gateway

FOLDER = Path(__file__).parents[3] / ".autobahn"
PROGRAM = (
    "import sys; sys.argv = ['wstest', '-m', 'fuzzingclient', '-s', 'spec.json']; "
    "from autobahntestsuite.wstest import run; run()"
)
# Envelopes are text: a binary message is refused with 1003 (G-32).
BINARY = {f"1.2.{number}" for number in range(1, 9)}
# Bad UTF-8 is found when its frame is complete. Whether the suite then still sends bytes of it one
# by one, which it calls late, depends on the time.
LATE = {"6.4.3", "6.4.4"}
FLOOR = 234


@pytest.mark.slow
@pytest.mark.rule("G-32")
def test_the_suite_finds_no_failure_but_those_by_design(tmp_path: Path) -> None:
    python = FOLDER / "python"
    if not python.exists():
        pytest.skip("Autobahn is not installed: run `make setup-autobahn`")
    with echo_gateway() as url:
        server = {"agent": "mcpp", "url": url}
        cases = [f"{group}.*" for group in (*range(1, 8), 10)]
        spec: dict[str, Any] = {"outdir": "reports", "servers": [server], "cases": cases}
        spec |= {"exclude-cases": [], "exclude-agent-cases": {}}
        (tmp_path / "spec.json").write_text(json.dumps(spec))
        subprocess.run(
            [str(python), "-c", PROGRAM],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(FOLDER / "packages")},
            check=True,
            capture_output=True,
            timeout=200,
        )
    found = json.loads((tmp_path / "reports" / "index.json").read_text())["mcpp"]
    failed = {
        case: (result["behavior"], result["behaviorClose"])
        for case, result in found.items()
        if "FAILED" in (result["behavior"], result["behaviorClose"])
    }
    assert set(failed) == BINARY
    assert {case for case, result in found.items() if result["behavior"] == "NON-STRICT"} <= LATE
    assert Counter(result["behavior"] for result in found.values())["OK"] >= FLOOR
