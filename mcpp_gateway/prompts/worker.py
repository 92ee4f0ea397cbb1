"""Computes one prompt: a process of its own, which can be ended and does not slow the gateway down.

Reads a `Task` in msgpack from standard input, and writes a JSON object to standard output.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

import msgspec

from mcpp.model_prompts import PROMPT_TOKENS, ModelPrompt
from mcpp.prompts import BudgetError, CallBlock, ImageBlock, Prompt, ResultBlock, TextBlock
from mcpp.protocol.codec import decode
from mcpp_gateway.prompts.task import Task

_NICENESS: Final = 10


def compute(task: Task) -> dict[str, Any]:
    """Return a prompt as the inspector shows it, or `{"problem": …}`."""
    log = [decode(text) for text in task.texts]
    budget = task.token_budget or PROMPT_TOKENS
    prompt = ModelPrompt(task.viewer, log, token_budget=budget)
    try:
        facts = {"viewer": task.viewer, "budget": budget, "envelopes": len(log)}
        return facts | _describe(prompt.build())
    except BudgetError as error:
        return {"problem": f"The prompt does not fit: {error}."}


def _describe(prompt: Prompt) -> dict[str, Any]:
    report = prompt.report
    return {
        "digest": prompt.digest,
        "tokens": report.tokens_after,
        "tokens_before": report.tokens_before,
        "system": prompt.system,
        "messages": [
            {"role": message.role, "parts": list(_parts(message.blocks))}
            for message in prompt.messages
        ],
        "handles": sorted(prompt.handles),
        "changed": _count_reasons(each.reason for each in report.changed),
        "left_out": _count_reasons(each.reason for each in report.left_out),
    }


def _parts(blocks: Iterable[Any]) -> Iterator[dict[str, str]]:
    for block in blocks:
        match block:
            case TextBlock(text=text):
                yield {"kind": "text", "text": text}
            case ImageBlock(media_type=media_type):
                yield {"kind": "image", "text": media_type}
            case CallBlock(name=name, json=arguments):
                yield {"kind": "call", "text": f"{name} {arguments}"}
            case ResultBlock(content=content, is_error=is_error):
                texts = [part["text"] for part in _parts(content)]
                yield {"kind": "error" if is_error else "result", "text": "\n".join(texts)}


def _count_reasons(reasons: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[reason] = counts.get(reason, 0) + 1
    return counts


def main() -> None:
    """Compute the prompt of a task."""
    with suppress(AttributeError, OSError):  # a sandbox may forbid it
        os.nice(_NICENESS)
    task = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Task)
    sys.stdout.buffer.write(msgspec.json.encode(compute(task)))


if __name__ == "__main__":
    main()
