"""Searches for hotels and trains: `python worker.py worker-1`. Run as many as you like.

Each task is taken by one worker at a time. If that worker is killed, another takes over.
"""

import os
import sys

import anyio

import mcpp

SECONDS = float(os.environ.get("SEARCH_SECONDS", "2"))

agent = mcpp.Participant(sys.argv[1] if len(sys.argv) > 1 else "worker-1")


@agent.on("task", claim=lambda message: message.id)
async def search(message: mcpp.Message) -> None:
    await anyio.sleep(SECONDS)  # a search takes its time
    found = f"{message.payload['what']} for {message.payload['city']}"
    await message.reply({"text": found, "by": message.pod.me}, kind="result")


if __name__ == "__main__":
    mcpp.run(agent)
