"""Users' code is accepted by type checkers in their strict modes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USER_CODE = ROOT / "tests" / "typing" / "user_code.py"
BIN = Path(sys.executable).parent


@pytest.mark.slow
def test_mypy_accepts_the_code_of_users(tmp_path: Path) -> None:
    cache = f"--cache-dir={tmp_path}"
    command = [str(BIN / "mypy"), "--strict", "--follow-imports=silent", cache, str(USER_CODE)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_pyright_accepts_the_code_of_users(tmp_path: Path) -> None:
    settings = {
        "include": [str(USER_CODE), str(ROOT / "examples")],
        "typeCheckingMode": "strict",
        "extraPaths": [str(ROOT), str(ROOT / "examples" / "coding")],
        "pythonVersion": f"{sys.version_info.major}.{sys.version_info.minor}",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    program = str(BIN / "basedpyright")
    command = [program, "--project", str(tmp_path), "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
