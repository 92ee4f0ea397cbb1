"""Errors are values: they can be copied and pickled."""

import copy
import pickle

import pytest

from mcpp import McppError, new_envelope
from mcpp.errors import (
    AddressError,
    AttachmentError,
    BusyError,
    CallError,
    ClosedError,
    DecodeError,
    HistoryLostError,
    JoinError,
    NoAnswerError,
    NotInHistoryError,
    PodNotFoundError,
    Refused,
    RemoteError,
    TimeError,
    TokenUnavailableError,
    TooLargeError,
    ToolError,
    UnreachableError,
    WrongParticipantError,
)
from mcpp.payloads import Error
from mcpp.protocol.rpc import ToolResult

ERRORS = [
    AddressError("x", "it is not a WebSocket URL"),
    AttachmentError(404, "there is no such blob for you"),
    BusyError("ws://here", "429 joined too often", 2),
    CallError("files", "read", "it is gone"),
    ClosedError(4500, "replaced"),
    DecodeError("$.id", "is missing"),
    HistoryLostError(),
    JoinError(401, "no such token"),
    NoAnswerError("files", "read", 1.5),
    NotInHistoryError("x"),
    PodNotFoundError("there is none"),
    Refused(new_envelope("chat", sender="me"), Error(error="rate_limited", message="slower")),
    RemoteError("files", "read", code=-32602, message="no such tool", data={"path": "$"}),
    TimeError("soon"),
    TokenUnavailableError("ws://here", "x.token: No such file or directory"),
    TooLargeError(3, 2),
    ToolError("files", "read", ToolResult(is_error=True)),
    UnreachableError("ws://here", "connection refused"),
    WrongParticipantError("alice", "bob"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_the_same_when_it_is_copied_or_pickled(error: McppError) -> None:
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.__dict__ == error.__dict__


def test_the_repr_of_a_timeout_shows_all_its_facts() -> None:
    assert repr(NoAnswerError("files", "read", 1.5)) == "NoAnswerError('files', 'read', 1.5)"
