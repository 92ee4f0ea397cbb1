"""Bounds on what an agent may do in one question, and on how long it may take."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AcpLimits:
    """Bounds on a coding agent. Times are in seconds."""

    start_seconds: float = 60.0  # from its start to its first answer, and to open a session
    settle_seconds: float = 0.2  # without updates, after it has loaded a session
    silence_seconds: float = 600.0  # without any update, while no person has to decide
    question_seconds: float = 4 * 3600.0
    approval_seconds: float = 3600.0
    cancel_seconds: float = 10.0  # to end its work when that is cancelled
    end_seconds: float = 5.0  # to end its questions when the bridge ends
    write_seconds: float = 30.0  # to read what it is sent

    questions: int = 4  # answered at once, each in a session of its own
    sessions: int = 64  # open at once; a session beyond that is loaded again when it is needed
    requests: int = 64  # of the agent, being served
    entries: int = 400  # envelopes in the context of one question
    text_chars: int = 200_000  # of one reply or thought
    shown_chars: int = 8_000  # of one result, diff or preview
    file_bytes: int = 4 * 1024 * 1024
    terminals: int = 8
    terminal_seconds: float = 600.0
    terminal_bytes: int = 1024 * 1024  # of output that is kept
