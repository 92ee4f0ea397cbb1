import pytest


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Run the socket tests on both event loops: their transports differ."""
    return "asyncio", {"use_uvloop": request.param}
