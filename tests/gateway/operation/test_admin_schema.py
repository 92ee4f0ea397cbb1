"""The admin's interface does what its OpenAPI document says: schemathesis makes the requests."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.gateway.operation.test_admin import ADMIN, admin_config
from tests.gateway.sockets import joined, running

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.rule("O-02")]
PROGRAM = Path(sys.executable).parent / "schemathesis"
EXAMPLES = "8"  # per operation, besides those that cover every keyword


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.skipif(not PROGRAM.exists(), reason="schemathesis is not installed")
async def test_requests_by_the_document_are_answered_as_it_says(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(100),
        running(admin_config()) as gateway,
        joined(gateway, "alice"),
    ):
        process = await asyncio.create_subprocess_exec(
            str(PROGRAM),
            "run",
            f"http://127.0.0.1:{gateway.port}/admin/openapi.json",
            "--header",
            f"Authorization: Bearer {ADMIN}",
            "--max-examples",
            EXAMPLES,
            "--seed",
            "1",
            "--generation-database",
            "none",
            "--suppress-health-check",
            "all",
            "--exclude-path",
            "/admin/drain",  # it would stop the gateway, as its own test shows
            # Not every pod exists, and a request without a right token is a guess (G-06), which
            # ends in 429; a GET with a body is no valid request. These have tests of their own.
            "--exclude-checks",
            "positive_data_acceptance,ignored_auth,unsupported_method",
            "--no-color",
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-8000:]
