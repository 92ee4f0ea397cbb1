"""Runs the specification's transcripts; `spec/transcripts/README.md` defines the format.

It uses nothing of the project: a WebSocket client and JSON, as a driver in another language would.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit
from uuid import uuid4

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

FOLDER = Path(__file__).parent.parent / "spec" / "transcripts"
SECONDS = 10.0
_variable = re.compile(r"\$[a-z_]+")


class TranscriptError(AssertionError):
    """What was received is not what the transcript says."""


@dataclass
class Driver:
    """Plays the scripted participants of one transcript. Owns their connections and variables."""

    url: str
    token_of: Callable[[str], str]
    _connections: dict[str, ClientConnection] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _values: dict[str, Any] = field(default_factory=dict)

    def run(self, steps: list[dict[str, Any]]) -> None:
        with ExitStack() as self._stack:
            for number, step in enumerate(steps, start=1):
                try:
                    self._do(step)
                except (TranscriptError, TimeoutError, ConnectionClosed) as error:
                    text = f"step {number} {json.dumps(step)}: {error!r}"
                    raise TranscriptError(text) from error

    def _do(self, step: dict[str, Any]) -> None:
        if "join" in step:
            self._join(step)
        elif "send" in step:
            self._send(step)
        elif "receive" in step:
            self._receive(step)
        elif "upload" in step or "download" in step:
            self._transfer(step)
        elif "close" in step:
            self._connections.pop(step["close"]).close()
        else:
            self._await_close(step)

    def _join(self, step: dict[str, Any]) -> None:
        name = step["join"]
        query = {key: self._filled(value) for key, value in step.get("query", {}).items()}
        headers = {"Authorization": f"Bearer {step.get('token', self.token_of(name))}"}
        url = f"{self.url}&{urlencode(query)}" if query else self.url
        try:
            opening = connect(url, additional_headers=headers, open_timeout=SECONDS, max_size=None)
            connection = self._stack.enter_context(opening)
        except InvalidStatus as error:
            if error.response.status_code != step.get("status"):
                raise TranscriptError(f"HTTP {error.response.status_code}") from None
            return
        if "status" in step:
            raise TranscriptError("it was admitted")
        label = step.get("connection", name)
        self._connections[label], self._names[label] = connection, name

    def _send(self, step: dict[str, Any]) -> None:
        label = step["send"]
        if "text" in step:
            self._connections[label].send(step["text"])
            return
        envelope = {
            "protocol": "mcpp/v0.1",
            "id": str(uuid4()),
            "ts": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "from": self._names[label],
        } | step["envelope"]
        if _is_variable(envelope["ts"]):
            now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
            envelope["ts"] = self._values.setdefault(envelope["ts"], now)
        self._connections[label].send(json.dumps(self._filled(envelope)))

    def _receive(self, step: dict[str, Any]) -> None:
        connection = self._connections[step["receive"]]
        expected = step.get("any_order", [step.get("envelope")])
        for _ in range(len(expected)):
            received = json.loads(connection.recv(timeout=SECONDS))
            problems = []
            for pattern in expected:
                values = dict(self._values)
                problem = mismatch(pattern, received, values)
                if problem is None:
                    self._values = values
                    expected = [other for other in expected if other is not pattern]
                    break
                problems.append(problem)
            else:
                raise TranscriptError(f"{'; '.join(problems)} in {json.dumps(received)}")

    def _transfer(self, step: dict[str, Any]) -> None:
        is_upload = "upload" in step
        token = self.token_of(step["upload"] if is_upload else step["download"])
        given = step["content"].encode() if is_upload else None
        method = ("PUT" if "hash" in step else "POST") if is_upload else "GET"
        hash = f"/{self._filled(step['hash'])}" if "hash" in step else ""
        parts = urlsplit(self.url)
        connection = HTTPConnection(parts.netloc, timeout=SECONDS)
        try:
            path, headers = f"/blob{hash}?{parts.query}", {"Authorization": f"Bearer {token}"}
            connection.request(method, path, given, headers)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if answer.status != step["status"]:
            raise TranscriptError(f"HTTP {answer.status}")
        if not is_upload and "content" in step and body.decode() != step["content"]:
            raise TranscriptError("another content")
        if "answer" in step:
            problem = mismatch(step["answer"], json.loads(body), self._values)
            if problem:
                raise TranscriptError(problem)

    def _await_close(self, step: dict[str, Any]) -> None:
        connection = self._connections[step["closed"]]
        try:
            while True:
                connection.recv(timeout=SECONDS)
        except ConnectionClosed as closed:
            code = None if closed.rcvd is None else closed.rcvd.code
            if code != step["code"]:
                raise TranscriptError(f"closed with {code}") from None

    def _filled(self, value: Any) -> Any:
        """Return a value with its variables replaced; a new one becomes a new id."""
        if _is_variable(value):
            return self._values.setdefault(value, str(uuid4()))
        if isinstance(value, str):
            return value.replace("$$", "$")
        if isinstance(value, dict):
            return {key: self._filled(part) for key, part in value.items()}
        if isinstance(value, list):
            return [self._filled(part) for part in value]
        return value


def mismatch(pattern: Any, value: Any, values: dict[str, Any], path: str = "$") -> str | None:
    """Return where a value does not match a pattern, None if it does; bind new variables."""
    if _is_variable(pattern):
        known = values.setdefault(pattern, value)
        return None if known == value else f"{path}: {pattern} is {known!r}, not {value!r}"
    if isinstance(pattern, str):
        pattern = pattern.replace("$$", "$")
    if isinstance(pattern, dict):
        return _object_mismatch(pattern, value, values, path)
    if isinstance(pattern, list):
        if not isinstance(value, list) or len(value) != len(pattern):
            return f"{path}: {len(pattern)} elements expected"
        found = (
            mismatch(one, other, values, f"{path}[{place}]")
            for place, (one, other) in enumerate(zip(pattern, value, strict=True))
        )
        return next((problem for problem in found if problem), None)
    is_same = type(pattern) is type(value) and pattern == value
    return None if is_same else f"{path}: {pattern!r} expected"


_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str, "number": (int, float), "object": dict, "array": list, "boolean": bool,
}  # fmt: skip


def _object_mismatch(
    pattern: dict[str, Any], value: Any, values: dict[str, Any], path: str
) -> str | None:
    if "$type" in pattern:
        return None if isinstance(value, _TYPES[pattern["$type"]]) else f"{path}: another type"
    if "$contains" in pattern:
        parts = value if isinstance(value, list) else []
        found = any(mismatch(pattern["$contains"], part, values) is None for part in parts)
        return None if found else f"{path}: no such element"
    if not isinstance(value, dict):
        return f"{path}: an object expected"
    for key, part in pattern.items():
        if part == {"$absent": True}:
            problem = f"{path}.{key}: must be absent" if key in value else None
        elif key not in value:
            problem = f"{path}.{key}: is missing"
        else:
            problem = mismatch(part, value[key], values, f"{path}.{key}")
        if problem:
            return problem
    return None


def _is_variable(value: Any) -> bool:
    return isinstance(value, str) and _variable.fullmatch(value) is not None


def load() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
