"""The AsyncAPI document: generated, checked in, and valid by the official parser."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from mcpp.cli import asyncapi
from mcpp.cli.main import main
from mcpp.payloads import BY_FAMILY

ROOT = Path(__file__).parents[3]
TOOLS = ROOT / ".mcp-servers"
NODE = shutil.which("node")
CHECK = """
import { Parser } from '@asyncapi/parser';
import { readFileSync } from 'fs';
const found = await new Parser().validate(readFileSync(process.argv[1], 'utf8'));
for (const each of found) console.log(each.severity, each.message, each.path.join('.'));
process.exit(found.some(each => each.severity === 0) ? 1 : 0);
"""
needs_parser = pytest.mark.skipif(
    NODE is None or not (TOOLS / "node_modules" / "@asyncapi").exists(),
    reason="needs `make setup-mcp` with npm",
)


def check(path: Path) -> subprocess.CompletedProcess[str]:
    command = [str(NODE), "--input-type=module", "-e", CHECK, str(path)]
    return subprocess.run(command, cwd=TOOLS, capture_output=True, text=True, check=False)


def test_the_document_is_that_of_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "spec" / "schema" / "asyncapi.json"
    assert path.read_text() == asyncapi.render(), "run: mcpp schema --asyncapi > " + str(path)
    assert main(["schema", "--asyncapi"]) == 0
    assert capsys.readouterr().out == asyncapi.render()


def test_every_family_with_a_payload_is_a_message() -> None:
    messages = asyncapi.generate()["components"]["messages"]
    assert {each["name"] for each in messages.values()} == {*BY_FAMILY, "other"}


@needs_parser
@pytest.mark.slow
def test_the_official_parser_accepts_it_and_notices_mistakes(tmp_path: Path) -> None:
    done = check(ROOT / "spec" / "schema" / "asyncapi.json")
    assert done.returncode == 0, done.stdout + done.stderr
    broken = asyncapi.generate()
    broken["operations"]["send"]["action"] = "shout"
    (tmp_path / "broken.json").write_text(json.dumps(broken))
    assert check(tmp_path / "broken.json").returncode == 1
