"""`fsync = "interval"`: what may be lost begins a new epoch, and nothing else does."""

import shutil
from pathlib import Path

import pytest

from mcpp_gateway.storage import log_store
from tests.gateway.durability.test_log_store import DurableGateway, say
from tests.gateway.sockets import joined, receive

pytestmark = [pytest.mark.anyio, pytest.mark.rule("L-15", "G-16")]

MODES = {"always": "", "interval": 'fsync = "interval"'}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Machine:
    """A machine that is rebooted, and on which a gateway is stopped or killed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._boots = self._logs = 0
        monkeypatch.setattr(log_store, "_boot_id", lambda: f"boot-{self._boots}")

    def reboot(self) -> None:
        self._boots += 1

    async def run(self, mode: str, *, stop: bool) -> str:
        """Run a gateway until it is stopped or killed, and return the epoch of its log."""
        log = self._folder / f"log-{self._logs}"
        async with (
            DurableGateway(log, MODES[mode]).run() as gateway,
            joined(gateway, "alice") as alice,
        ):
            epoch = (await receive(alice))["payload"]["pod"]["epoch"]
            await say(alice, f"m{self._logs}")
            if not stop:  # what was written is what a killed one leaves
                self._logs += 1
                shutil.copytree(log, self._folder / f"log-{self._logs}")
        assert isinstance(epoch, str)
        return epoch


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize("mode", MODES)
async def test_a_change_of_mode_does_not_hide_a_loss(machine: Machine, mode: str) -> None:
    before = await machine.run("interval", stop=False)
    machine.reboot()
    assert await machine.run(mode, stop=True) != before


async def test_a_change_of_mode_before_a_loss_does_not_hide_it(machine: Machine) -> None:
    before = await machine.run("always", stop=True)
    assert await machine.run("interval", stop=False) == before
    machine.reboot()
    assert await machine.run("always", stop=True) != before


async def test_what_was_always_synced_is_not_lost(machine: Machine) -> None:
    before = await machine.run("interval", stop=True)
    assert await machine.run("always", stop=False) == before
    machine.reboot()
    assert await machine.run("interval", stop=False) == before


async def test_a_kill_loses_nothing_in_the_same_boot(machine: Machine) -> None:
    before = await machine.run("interval", stop=True)
    machine.reboot()
    assert await machine.run("interval", stop=False) == before
    assert await machine.run("interval", stop=False) == before
    machine.reboot()
    assert await machine.run("interval", stop=False) != before


async def test_where_boots_cannot_be_told_apart_the_worst_is_assumed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_store, "_boot_id", str)
    before = await machine.run("interval", stop=False)
    assert await machine.run("interval", stop=True) != before
