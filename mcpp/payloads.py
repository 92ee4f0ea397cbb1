"""Typed payloads of the known kinds, to read with `envelope.payload_as(...)` and to build.

Unknown members are allowed and ignored, as everywhere in the protocol. `text_of` returns what an
envelope of any kind says, as text.
"""

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from mcpp import kinds

if TYPE_CHECKING:
    from mcpp.protocol.envelope import Envelope

__all__ = [
    "TEXT_KINDS",
    "Chat",
    "Conclusion",
    "ContextEvent",
    "ContextInfo",
    "Error",
    "Notification",
    "ParticipantInfo",
    "PodInfo",
    "Presence",
    "Proposal",
    "Reflection",
    "Reject",
    "Request",
    "Response",
    "RpcError",
    "SetFilter",
    "Welcome",
    "Withdraw",
    "text_of",
    "text_payload",
]


class _Payload(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    pass


class Chat(_Payload, frozen=True):
    """A message for people and models to read."""

    text: str
    format: Literal["plain", "markdown"] = "plain"


class Reflection(_Payload, frozen=True):
    """A reasoning step, shared in a context."""

    thought: str


class Conclusion(_Payload, frozen=True):
    """The outcome of a context. It counts only if the context's creator sends it."""

    decision: Any = None
    text: str | None = None


class RpcError(_Payload, frozen=True):
    """A JSON-RPC error object."""

    code: int
    message: str
    data: Any = None


class Request(_Payload, frozen=True):
    """A JSON-RPC request; its `id` is the envelope's."""

    jsonrpc: Literal["2.0"]
    id: str | int
    method: str
    params: dict[str, Any] = {}


class Response(_Payload, frozen=True):
    """A JSON-RPC response: a result or an error."""

    jsonrpc: Literal["2.0"]
    id: str | int | None
    result: Any = msgspec.UNSET  # null is a result
    error: RpcError | None = None


class Notification(_Payload, frozen=True):
    """A JSON-RPC notification: progress, a cancellation, a changed list."""

    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, Any] = {}


class Proposal(_Payload, frozen=True):
    """A request that its sender may not send, for a participant that may."""

    method: str
    params: dict[str, Any] = {}


class Reject(_Payload, frozen=True):
    """A vote against a proposal; it does not close the proposal."""

    reason: str
    text: str | None = None


class Withdraw(_Payload, frozen=True):
    """The proposer withdraws a proposal."""

    reason: str | None = None


class ParticipantInfo(_Payload, frozen=True):
    """A participant and its capabilities."""

    id: str
    capabilities: list[dict[str, Any]] = []


class PodInfo(_Payload, frozen=True):
    """A pod and the epoch of its log; a new epoch means that the log was lost."""

    name: str
    epoch: str
    log: str | None = None  # where the log is: memory, file or cluster


class ContextInfo(_Payload, frozen=True):
    """A context with its creator, and the type and parent that the creator fixed (C-02)."""

    id: str
    type: str | None = None
    parent: str | None = None
    creator: str | None = None  # None: nothing was sent in it yet
    messages: int | None = None  # in a welcome: how many envelopes it had by then


class Welcome(_Payload, frozen=True):
    """The first envelope of every connection."""

    you: ParticipantInfo
    participants: list[ParticipantInfo]
    pod: PodInfo
    limits: dict[str, Any]
    contexts: list[ContextInfo]
    resumed: bool
    replayed: int
    more: bool = False
    position: str | None = None  # the last envelope of the log, to resume after


class Presence(_Payload, frozen=True):
    """A participant joined or left."""

    event: Literal["join", "leave"]
    participant: ParticipantInfo


class Error(_Payload, frozen=True):
    """A refusal: its code, an explanation, and details that depend on the code."""

    error: str
    message: str
    attempted_kind: str | None = None
    your_capabilities: list[dict[str, Any]] | None = None
    retry_after_seconds: float | None = None
    scope: Literal["participant", "context"] | None = None


class ContextEvent(_Payload, frozen=True):
    """A context expired, or was revived. The last three members are those of an expiry."""

    event: Literal["expired", "revived"]
    context: ContextInfo
    messages: int
    participants: list[str] | None = None
    started: str | None = None  # by the gateway's clock, as `last`
    last: str | None = None


class SetFilter(_Payload, frozen=True):
    """A filter that is requested (`pod/filter`) or in force from here on (`system/filter`)."""

    filter: dict[str, Any]


BY_FAMILY: Final[dict[str, type[_Payload]]] = {
    kinds.CHAT: Chat,
    kinds.REFLECTION: Reflection,
    kinds.CONCLUSION: Conclusion,
    kinds.REQUEST: Request,
    kinds.RESPONSE: Response,
    kinds.NOTIFICATION: Notification,
    kinds.PROPOSAL: Proposal,
    kinds.REJECT: Reject,
    kinds.WITHDRAW: Withdraw,
    kinds.WELCOME: Welcome,
    kinds.PRESENCE: Presence,
    kinds.ERROR: Error,
    kinds.CONTEXT: ContextEvent,
    kinds.FILTER_SET: SetFilter,
    kinds.SET_FILTER: SetFilter,
}


class _Said(msgspec.Struct):
    text: Any = None
    thought: Any = None


# Does not build the payload's dictionary: most of a log is chat.
_read_said: Final = msgspec.json.Decoder(_Said).decode


TEXT_KINDS: Final = frozenset({kinds.CHAT, kinds.REFLECTION, kinds.CONCLUSION})


def text_payload(kind: str, text: str) -> dict[str, str]:
    """Return the payload that says a text in an envelope of this kind."""
    return {"thought": text} if kind == kinds.REFLECTION else {"text": text}


def text_of(envelope: "Envelope", *, complete: bool = False) -> str | None:
    """Return what an envelope says, as text; None if its payload contains no text.

    | kind       | text                                                               |
    | ---------- | ------------------------------------------------------------------ |
    | reflection | `thought`, else `text`                                             |
    | conclusion | `decision` and `text`; without both, the payload as JSON           |
    | any other  | `text`, else `thought`                                             |

    A decision that is not a string is returned as JSON. With `complete`, the other members of a
    conclusion follow as JSON. Never raises, whatever the payload.
    """
    # `decode` has checked the payload of an envelope; one built by hand may contain anything.
    try:
        if envelope.kind == kinds.CONCLUSION:
            return _conclusion_text(msgspec.json.decode(envelope.raw_payload), complete)
        said = _read_said(envelope.raw_payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    candidates = [said.text, said.thought]
    if envelope.kind == kinds.REFLECTION:
        candidates.reverse()
    return next((each for each in candidates if isinstance(each, str)), None)


def _conclusion_text(payload: Any, complete: bool) -> str | None:
    if not isinstance(payload, dict):
        return None if payload is None else _as_text(payload)
    main = (payload.pop("decision", None), payload.pop("text", None))
    parts = [_as_text(part) for part in main if part is not None and part != ""]
    if payload and (complete or not parts):
        parts.append(_as_text(payload))
    return "\n".join(dict.fromkeys(parts)) or None


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
