"""Decoding an envelope with all checks and a raw payload, against json.loads and pydantic.

Every round times all three over the same messages, whose ids all differ. The result is the median
of the ratios of each round, so that load on the machine affects all three alike. pydantic checks
the patterns, but not depth, numbers or duplicate names.
"""

import json
import platform
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from mcpp import PROTOCOL, Context, Envelope, decode, encode, new_context, new_envelope
from mcpp.client.factory import new_id
from mcpp.protocol.envelope import ID_PATTERN, KIND_PATTERN, PARTICIPANT_PATTERN, TIMESTAMP_PATTERN

ROUNDS = 31
MESSAGES = 64
ROUND_BYTES = 1_000_000

Id = Annotated[str, Field(pattern=f"^{ID_PATTERN}$")]
Participant = Annotated[str, Field(pattern=f"^{PARTICIPANT_PATTERN}$")]


class ContextModel(BaseModel):
    model_config = ConfigDict(extra="allow")

    id: Id
    type: Id | None = None
    parent: Id | None = None
    metadata: dict[str, Any] | None = None


class EnvelopeModel(BaseModel):
    model_config = ConfigDict(extra="allow")

    protocol: Annotated[str, Field(pattern=f"^{PROTOCOL}$")]
    id: Id
    ts: Annotated[str, Field(pattern=f"^(?:{TIMESTAMP_PATTERN})$")]
    sender: Participant = Field(alias="from")
    to: list[Participant] | None = None
    kind: Annotated[str, Field(pattern=f"^{KIND_PATTERN}$")]
    correlation_id: Id | None = None
    context: ContextModel | None = None
    payload: Any


def tool_call(arguments: dict[str, Any], context: Context | None = None) -> Envelope:
    id = new_id()
    return new_envelope(
        "mcp/request:tools/call:read_file",
        {
            "jsonrpc": "2.0",
            "id": id,
            "method": "tools/call",
            "params": {"name": "read_file", "arguments": arguments},
        },
        sender="researcher",
        to=["files"],
        context=context or CONTEXT,
        id=id,
    )


CONTEXT = new_context("reasoning")


def text(size: int) -> dict[str, Any]:
    line = "The quick brown fox jumps over the lazy dog, 17 times in 2025.\n"
    return {"text": (line * (size // len(line) + 1))[:size]}


def nested(size: int) -> dict[str, Any]:
    record = {"id": 72, "name": "Web development", "tags": ["a", "b"], "hours": 1.25, "open": True}
    return {"records": [record] * (size // len(json.dumps(record)) + 1)}


def compact(arguments: dict[str, Any]) -> bytes:
    return encode(tool_call(arguments))


SHORT = {"path": "src/main.py"}
CASES: dict[str, Callable[[], bytes]] = {
    "tool call": lambda: compact(SHORT),
    "  in a new context": lambda: encode(tool_call(SHORT, new_context("reasoning"))),
    "  with metadata": lambda: encode(
        tool_call(SHORT, new_context("reasoning", id=CONTEXT.id, metadata={"trigger": "a", "n": 1}))
    ),
    "  with spaces": lambda: json.dumps(json.loads(compact(SHORT))).encode(),
    "  with an unknown member": lambda: compact(SHORT)[:-1] + b',"note":1}',
    "4 kB text": lambda: compact(text(4_000)),
    "4 kB nested": lambda: compact(nested(4_000)),
    "64 kB text": lambda: compact(text(64_000)),
    "64 kB nested": lambda: compact(nested(64_000)),
}


def run() -> None:
    print(f"Python {platform.python_version()}, median of {ROUNDS} rounds")
    print(f"{'':26}{'bytes':>8}{'decode':>11}{'of json.loads':>16}{'of pydantic':>14}")
    for name, make in CASES.items():
        messages = [make() for _ in range(MESSAGES)]
        size = len(messages[0])
        repeats = max(1, ROUND_BYTES // (size * MESSAGES))
        times = [
            [
                seconds(function, messages, repeats)
                for function in (decode, json.loads, EnvelopeModel.model_validate_json)
            ]
            for _ in range(ROUNDS)
        ]
        micros = median(ours for ours, _, _ in times) * 1e6
        of_json = median(ours / theirs for ours, theirs, _ in times)
        of_pydantic = median(ours / theirs for ours, _, theirs in times)
        print(f"{name:26}{size:8}{micros:8.2f} µs{of_json:16.2f}{of_pydantic:14.2f}")


def seconds(function: Callable[[bytes], object], messages: list[bytes], repeats: int) -> float:
    """Return the time per message."""
    start = perf_counter()
    for _ in range(repeats):
        for message in messages:
            function(message)
    return (perf_counter() - start) / (repeats * len(messages))
