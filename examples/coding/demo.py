"""Two coding agents in one pod: one writes, one reviews, and you approve: `make demo-agents`.

Starts a pod, its memory, a fake model and two processes of opencode, asks the writer for a program,
and prints what happens. With --approve it approves every change by itself, and ends.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import anyio
import model
import opencode

import mcpp
from mcpp.client import local_pod

MCPP = str(Path(sys.executable).with_name("mcpp"))
QUESTION = "Please write greet.py with a function greet(name) that returns a greeting."
WAIT_SECONDS = 120.0


def main() -> int:
    """Run the demo."""
    parser = argparse.ArgumentParser(description="Two coding agents: one writes, one reviews.")
    parser.add_argument("--folder", type=Path, default=Path("agents-demo"), help="where it runs")
    parser.add_argument("--port", type=int, default=8787, help="the gateway's port")
    parser.add_argument("--approve", action="store_true", help="approve every change, and end")
    arguments = parser.parse_args()
    program = opencode.program()
    if program is None:
        print("opencode is not installed: `make setup-agents`, or `npm install -g opencode-ai`")
        return 1
    folder = arguments.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "project").mkdir(parents=True)
    # As Ctrl-C: the end of the terminal, too, has to end what was started.
    for order in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(order) is not signal.SIG_IGN:  # as with nohup
            signal.signal(order, signal.default_int_handler)
    with ExitStack() as stack, suppress(KeyboardInterrupt):
        url = stack.enter_context(model.serving())
        start(stack, folder, "up", "--port", str(arguments.port))
        anyio.run(wait_for_pod, folder)
        start(stack, folder, "memory", "join", "--embedder", "none")
        for name in ("writer", "reviewer"):
            own = opencode.environment(url, folder / "homes" / name)
            passed = [option for each in opencode.VARIABLES for option in ("--env", each)]
            start(
                stack, folder, "bridge", name, "--acp", "--cwd", "project", *passed,
                "--", str(program), "acp", environ=own,
            )  # fmt: skip
        anyio.run(watch, folder, arguments.approve)
        print("\nWhat memory has kept:\n")
        print(recall(folder))
        if not arguments.approve:
            log = arguments.folder / local_pod.DIRECTORY / "log"
            print(f"\nStop with Ctrl-C. To see it again: mcpp replay {log}")
            signal.pause()
    return 0


def recall(folder: Path) -> str:
    """Return what memory says about greetings, once it has heard of the decision."""
    command = [MCPP, "memory", "context", "greet", "--embedder", "none", "--tokens", "700"]
    found = ""
    for _ in range(20):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        found = done.stdout
        if "Decided" in found:
            break
    return found


def start(
    stack: ExitStack, folder: Path, *arguments: str, environ: dict[str, str] | None = None
) -> None:
    """Start a command of `mcpp` that ends with the demo."""
    with (folder / "demo.log").open("ab") as log:
        process = subprocess.Popen(
            [MCPP, *arguments],
            cwd=folder,
            env=os.environ | (environ or {}),
            stderr=log,
            start_new_session=True,
        )
    stack.callback(process.wait)
    stack.callback(process.terminate)


async def wait_for_pod(folder: Path) -> None:
    """Wait until the pod of a folder accepts connections."""
    with anyio.fail_after(WAIT_SECONDS):
        while not is_created(folder):  # noqa: ASYNC110
            await anyio.sleep(0.1)
        async with mcpp.connect(person(folder), options=mcpp.Options(keep_trying=True)):
            pass


def is_created(folder: Path) -> bool:
    """Return whether `mcpp up` has created the pod of a folder, and the person in it."""
    pod = local_pod.LocalPod(folder / local_pod.DIRECTORY)
    return pod.path.is_file() and pod.token(local_pod.person()) is not None


def person(folder: Path) -> local_pod.Address:
    """Return the address of the person in front of this machine."""
    pod = local_pod.LocalPod(folder / local_pod.DIRECTORY)
    token = pod.token(local_pod.person())
    assert token is not None
    return local_pod.Address(pod.url, token)


async def watch(folder: Path, approves: bool) -> None:
    """Ask the writer, and print what is said until the review has ended."""
    async with mcpp.connect(person(folder)) as pod:
        for name in ("memory", "writer", "reviewer"):
            await pod.wait_for_presence(name, WAIT_SECONDS)
        print(f"\n{pod.me}: {QUESTION}")
        await pod.send("chat", QUESTION, to="writer")
        async for message in pod:
            if message.kind == "chat":
                print(f"{message.sender}: {message.text}")
                if message.sender == "reviewer" and "Decided" in message.text:
                    break
            elif message.kind == "mcp/proposal:tools/call:allow":
                print(f"* {message.payload['reason']}")
                if approves:
                    await pod.approve(message)
                else:
                    print("  Approve it in the inspector; its address is above.")


if __name__ == "__main__":
    raise SystemExit(main())
