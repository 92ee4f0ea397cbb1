"""Shows a person the proposals that wait, and asks about each: `python approve.py NAME`.

`mcpp chat` and the inspector do the same. Whatever was proposed while the person was away is there.
"""

import sys

import anyio

import mcpp
from mcpp.payloads import Proposal


async def main(name: str) -> None:
    async with mcpp.connect(name=name) as pod:
        for message in await pod.open_proposals():
            proposal = message.payload_as(Proposal)
            lines = [f"{message.sender} proposes {proposal.params['name']}", proposal.shown_reason]
            if (preview := proposal.shown_preview) is not None:
                lines.append(preview.after)
            if message.sender not in pod.participants:
                lines.append(f"({message.sender} is not here now.)")
            question = "\n".join(line for line in [*lines, "Approve? [y/n] "] if line)
            answer = await anyio.to_thread.run_sync(input, question)
            if answer.strip() == "y":
                await pod.approve(message)
            else:
                await pod.reject(message, "rejected by a person")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "person")
