"""Where an exporter stopped: the last envelope that it has processed, and the open contexts."""

import os
from pathlib import Path

import msgspec

from mcpp import McppError
from mcpp_agents.otel.contexts import TracedContext


class StateError(McppError):
    """The file cannot be read or written."""


class ExportState(msgspec.Struct, kw_only=True):
    """What is stored to go on later."""

    pod: str = ""
    after: str | None = None
    contexts: list[TracedContext] = []


def open_state(path: Path) -> ExportState:
    """Return the stored state, an empty one if there is none, and create the file.

    Raises StateError if it cannot be read or written: now, and not when there is something to keep.
    """
    state = read_state(path)
    write_state(path, msgspec.json.encode(state))
    return state


def read_state(path: Path) -> ExportState:
    """Return the stored state, an empty one if there is none. Raises StateError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ExportState)
    except FileNotFoundError:
        return ExportState()
    except OSError as error:
        raise StateError(f"cannot read {path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise StateError(f"cannot read {path}: {error}") from None


def write_state(path: Path, state: bytes) -> None:
    """Replace the file, at once and completely; create its folder. Raises StateError."""
    draft = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(state)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise StateError(f"cannot write {path}: {error.strerror}") from None
