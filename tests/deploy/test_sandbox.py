"""The gateway works under the system call filter of the unit."""

import asyncio
import json
import platform
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio
import pytest

import mcpp
from tests.gateway.sockets import BOUND, config_text, token

UNIT = Path(__file__).parents[2] / "deploy" / "mcpp-gateway.service"
MCPP = str(Path(sys.executable).parent / "mcpp")
ANALYZE = shutil.which("systemd-analyze")
ENTRIES = 4000  # enough for another process to index them
# Allows the calls that are written in the place of @, answers EPERM to others, and runs a command.
FILTER = """
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALLOW(call) \\
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),

static struct sock_filter filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
@
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
};

int main(int count, char **arguments) {
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0)
        execv(arguments[1], arguments + 1);
    return 70;
}
"""

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(platform.system() != "Linux", reason="needs Linux"),
    pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def calls_of(name: str) -> set[str]:
    """Return the system calls of a group such as @system-service, or the one of this name."""
    if not name.startswith("@"):
        return {name}
    command = [str(ANALYZE), "syscall-filter", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    members = [line.strip() for line in done.stdout.splitlines()[1:]]
    return set().union(*(calls_of(each) for each in members if each and each[0] != "#"))


def allowed_calls() -> set[str]:
    """Return what the unit's filter allows."""
    calls = calls_of("@default")
    for value in re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.MULTILINE):
        for name in value.lstrip("~").split():
            calls = calls - calls_of(name) if value[0] == "~" else calls | calls_of(name)
    return calls


def build_filter(folder: Path) -> Path:
    """Compile a program that runs a command under the unit's filter."""
    calls = "".join(
        f"#ifdef __NR_{name}\nALLOW(__NR_{name})\n#endif\n" for name in sorted(allowed_calls())
    )
    path = folder / "filtered"
    command = ["cc", "-o", str(path), "-xc", "-"]
    subprocess.run(command, input=FILTER.replace("@", calls), text=True, check=True)
    return path


@asynccontextmanager
async def started(folder: Path, *wrapper: Path) -> AsyncIterator[str]:
    """Run a gateway, and yield its address."""
    command = [*map(str, wrapper), MCPP, "gateway", "--config", str(folder / "gateway.toml")]
    with (folder / "stderr").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stderr=log)
    try:
        lines = ""
        while (found := re.search(r" listening .*port=(\d+)", lines)) is None:
            assert process.returncode is None, lines
            await asyncio.sleep(0.05)
            lines = (folder / "stderr").read_text()
        yield f"127.0.0.1:{found[1]}"
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert process.returncode == 0


async def test_prompts_and_the_index_are_computed_under_the_units_filter(tmp_path: Path) -> None:
    text = config_text(messages_per_second=0, context_messages_per_second=0)
    (tmp_path / "gateway.toml").write_text(f'{text}\n[log]\nkind = "file"\npath = "data"\n')
    (tmp_path / "gateway.toml").chmod(0o600)  # no warning
    async with asyncio.timeout(4 * BOUND):
        async with (
            started(tmp_path) as address,
            mcpp.connect(f"ws://{address}/ws?pod=demo", token=token("alice")) as alice,
        ):
            for _ in range(ENTRIES):
                await alice.send("chat", "hello", wait=False)
            await alice.send("chat", "the last")
        for name in ("index.sqlite", "text.sqlite"):
            (tmp_path / "data" / "demo" / name).unlink(missing_ok=True)
        async with (
            started(tmp_path, build_filter(tmp_path)) as address,
            mcpp.connect(f"ws://{address}/ws?pod=demo", token=token("alice")) as alice,
        ):
            while indexed_entries(tmp_path / "data" / "demo" / "text.sqlite") < ENTRIES:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            found = [each.text async for each in alice.history(text="last")]
            assert found == ["the last"]
            prompt = await anyio.to_thread.run_sync(fetch_prompt, address)
            assert prompt["viewer"] == "alice"
            lines = (tmp_path / "stderr").read_text().splitlines()
            assert not [line for line in lines if " info " not in line]


def indexed_entries(path: Path) -> int:
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as index:
            return int(index.execute("SELECT value FROM meta WHERE key = 'to'").fetchone()[0])
    except (sqlite3.OperationalError, TypeError):
        return 0  # it is not written yet


def fetch_prompt(address: str) -> dict[str, object]:
    request = urllib.request.Request(f"http://{address}/prompt?viewer=alice")
    request.add_header("Authorization", f"Bearer {token('alice')}")
    with urllib.request.urlopen(request, timeout=BOUND) as answer:
        found: dict[str, object] = json.load(answer)
        return found
