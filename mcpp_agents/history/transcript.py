"""A context as a transcript: Markdown for people, JSON for programs.

What participants wrote is quoted line by line, so that none of them can forge a heading or the
words of another.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from mcpp import ContextHistory, ContextNode, Envelope, HistoryMessage, encode, kinds
from mcpp.payloads import text_of
from mcpp_agents.cli.display import clean, describe, format_answer, one_line
from mcpp_agents.cli.labels import ContextLabels
from mcpp_agents.history.results import local_time, plural

_is_plain = re.compile(r"[A-Za-z0-9 .:/-]{1,100}").fullmatch


def to_markdown(found: ContextHistory) -> str:
    """Return a context with its descendants as a transcript in Markdown."""
    return "\n".join(_lines(found)) + "\n"


def to_json(found: ContextHistory) -> bytes:
    """Return a context with its descendants as JSON."""
    value = {
        **_facts(found.node),
        "complete": found.complete,
        "contexts": [_facts(node) for node, depth in found.node.walk() if depth],
        "messages": [
            {
                "position": one.position,
                "time": one.time,
                "envelope": _raw(one.envelope),
                **({"erased": True} if one.erased else {}),
            }
            for one in found.messages
        ],
    }
    return msgspec.json.encode(value)


def _lines(found: ContextHistory) -> Iterator[str]:
    node = found.node
    first, last = found.messages[0].received_at, found.messages[-1].received_at
    nodes = [each for each, _ in node.walk()]
    people = dict.fromkeys(name for each in nodes for name in each.participants)
    yield f"# {_type(node)} {node.id}"
    yield ""
    if node.title is not None:
        yield f"- title: {_code(node.title)}"
    yield f"- state: {node.state}"
    if node.progress is not None:
        yield f"- steps: {node.progress} ({', '.join(map(_code, node.steps))})"
    yield f"- created by: {node.creator}"
    yield f"- participants: {', '.join(people)}"
    yield f"- time: {local_time(first)} to {local_time(last)}"
    yield f"- size: {plural(len(found.messages), 'message')} in {plural(len(nodes), 'context')}"
    if not found.complete:
        yield "- only the beginning is shown; --limit shows more"
    if node.conclusion is not None:
        yield "\n## Outcome\n"
        yield _quote(_outcome(node.conclusion))
    if len(nodes) > 1:
        yield "\n## Contexts\n"
        for each, depth in node.walk():
            ends = (
                "" if each.conclusion is None else f": {one_line(_outcome(each.conclusion), 100)}"
            )
            about = f"{plural(len(each.envelopes), 'message')}, {each.state}{ends}"
            title = "" if each.title is None else f" {_code(each.title)}"
            yield f"{'  ' * depth}- {_type(each)}{title} {each.id}, {about}"
    yield "\n## Transcript\n"
    levels = {each.id: (each, depth) for each, depth in node.walk()}
    labels = ContextLabels()
    for message in found.messages:
        yield from _message(message, levels, labels)


def _message(
    message: HistoryMessage, levels: dict[str, tuple[ContextNode, int]], labels: ContextLabels
) -> Iterator[str]:
    to = f" → {', '.join(message.to)}" if message.to else ""
    where = ""
    if message.context is not None and message.context.id in levels:
        node, depth = levels[message.context.id]
        where = f" · {labels(node.id, f'{_type(node)} ', _title(node))}" if depth else ""
    head = f"{local_time(message.received_at)} {message.sender}{to}"
    yield f"**{head}** · {_code(message.kind)}{where}\n"
    yield _quote("(erased)" if message.erased else _content(message.envelope)) + "\n"


def _title(node: ContextNode) -> str | None:
    return None if node.title is None else f"{_type(node)} {_code(node.title)}"


def _content(envelope: Envelope) -> str:
    """Return everything that an envelope says, as text for people."""
    text = text_of(envelope, complete=True)
    if text is not None:
        return text
    if envelope.kind.startswith("mcp/response"):
        return format_answer(envelope)
    return describe(envelope, None)


def _outcome(conclusion: Envelope) -> str:
    return "(erased)" if conclusion.kind == kinds.TOMBSTONE else _content(conclusion)


def _type(node: ContextNode) -> str:
    """Return a context's type; one that its creator wrote in Markdown is shown as code."""
    if node.type is None or _is_plain(node.type):
        return node.type or "context"
    return _code(node.type)


def _code(text: str) -> str:
    return f"`{one_line(text, 100).replace('`', chr(39))}`"


def _quote(text: str) -> str:
    """Return the text with `> ` before each line; other line breaks are replaced."""
    return "\n".join(f"> {line}".rstrip() for line in clean(text).split("\n"))


def _facts(node: ContextNode) -> dict[str, Any]:
    return {
        "id": node.id,
        "type": node.type,
        "title": node.title,
        "parent": None if node.parent is None else node.parent.id,
        "creator": node.creator,
        "state": node.state,
        "steps": node.steps,
        "done": node.done,
        "participants": node.participants,
        "conclusion": None if node.conclusion is None else _raw(node.conclusion),
    }


def _raw(envelope: Envelope) -> msgspec.Raw:
    return msgspec.Raw(encode(envelope))
