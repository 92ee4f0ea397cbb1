"""Typed payloads of the known kinds, to read with `envelope.payload_as(...)` and to build.

Unknown members are allowed and ignored, as everywhere in the protocol. `text_of` returns what an
envelope of any kind says, as text.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from mcpp import kinds

if TYPE_CHECKING:
    from mcpp.protocol.envelope import Envelope

__all__ = [
    "TEXT_KINDS",
    "CardAnswer",
    "CardRequest",
    "Chat",
    "ClaimName",
    "Conclusion",
    "ContextEvent",
    "ContextFailure",
    "ContextInfo",
    "Erased",
    "Error",
    "ForkOrigin",
    "GetHistory",
    "History",
    "HistoryEntry",
    "LiveText",
    "Loop",
    "Notification",
    "Outcome",
    "ParticipantInfo",
    "PodInfo",
    "Presence",
    "PresenceEntry",
    "Preview",
    "Proposal",
    "Reflection",
    "Reject",
    "Release",
    "Replay",
    "Request",
    "Response",
    "RpcError",
    "SetFilter",
    "SetReplay",
    "Update",
    "Welcome",
    "Withdraw",
    "opts_out",
    "outcome_in",
    "text_of",
    "text_payload",
]


Outcome: TypeAlias = Literal["concluded", "failed", "cancelled"]


class _Payload(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    pass


class Chat(_Payload, frozen=True):
    """A message for people and models to read."""

    text: str
    format: Literal["plain", "markdown"] = "plain"


class LiveText(_Payload, frozen=True):
    """A part of a text that is still being written; see `mcpp.live`."""

    offset: int  # how many characters precede it
    text: str
    in_reply_to: str | None = None  # the envelope that the complete message answers
    ended: bool = False  # no complete message follows


class Reflection(_Payload, frozen=True):
    """A reasoning step, shared in a context."""

    thought: str
    step: str | None = None  # of those that the context announces, the one that begins (C-21)


class ContextFailure(_Payload, frozen=True):
    """Why a context failed: the type of an error and its message, without a traceback."""

    type: str
    message: str = ""


class Conclusion(_Payload, frozen=True):
    """The outcome of a context. It counts only if the context's creator sends it."""

    decision: Any = None
    text: str | None = None
    outcome: str | None = None  # "failed", "cancelled"; anything else is concluded (C-19)
    error: Any = None  # of a failed context: a ContextFailure


class RpcError(_Payload, frozen=True):
    """A JSON-RPC error object."""

    code: int
    message: str
    data: Any = None


class Request(_Payload, frozen=True):
    """A JSON-RPC request. Its `id` may be any; the envelope's correlates the answer (P-64)."""

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


class Preview(_Payload, frozen=True):
    """What a proposed call would change, as text: before it, after it, or both."""

    before: str | None = None
    after: str | None = None


class Proposal(_Payload, frozen=True):
    """A request that its sender may not send, for a participant that may."""

    method: str
    params: dict[str, Any] = {}
    # For the participant that decides (P-51). Of any form: it must not make a proposal invalid.
    reason: Any = None
    preview: Any = None

    @property
    def shown_reason(self) -> str | None:
        """Why the proposer asks, if it says so as a text."""
        return self.reason if isinstance(self.reason, str) and self.reason else None

    @property
    def shown_preview(self) -> Preview | None:
        """What the call would change, if the proposal says so."""
        try:
            shown = msgspec.convert(self.preview, Preview | None)
        except msgspec.ValidationError:
            return None
        return None if shown == Preview() else shown


class Reject(_Payload, frozen=True):
    """A vote against a proposal; it does not close the proposal."""

    reason: str
    text: str | None = None


class Withdraw(_Payload, frozen=True):
    """The proposer withdraws a proposal."""

    reason: str | None = None


class ClaimName(_Payload, frozen=True):
    """A claim of the name in its kind, `claim:NAME`. It has no members."""


class Release(_Payload, frozen=True):
    """The holder of a claim releases its name; `done` if no worker has to take it again."""

    done: bool = False


class ParticipantInfo(_Payload, frozen=True):
    """A participant, its capabilities, and the digest of its card."""

    id: str
    capabilities: list[dict[str, Any]] = []
    card: str | None = None


class Update(_Payload, frozen=True):
    """What welcomes and presence say of a participant has changed: its card is another one."""

    participant: ParticipantInfo


class CardRequest(_Payload, frozen=True):
    """A request to the gateway: a card to set, or a participant whose card is wanted."""

    card: dict[str, Any] | None = None
    participant: str | None = None


class CardAnswer(_Payload, frozen=True):
    """The answer to a request for a card; without one if the request has set it."""

    participant: str
    digest: str | None = None
    card: dict[str, Any] | None = None


class Replay(_Payload, frozen=True):
    """How far a recording was played. Times are those of the recording."""

    state: Literal["playing", "paused", "ended"]
    position: int  # of what arrives next
    speed: float
    start: int
    end: int
    time: float
    start_time: float
    end_time: float


class ForkOrigin(_Payload, frozen=True):
    """The log that a fork comes from, and the last entry of both."""

    pod: str
    epoch: str
    position: int
    id: str


class PodInfo(_Payload, frozen=True):
    """A pod and the epoch of its log; a new epoch means that the log was lost."""

    name: str
    epoch: str
    log: str | None = None  # where the log is: memory, file or cluster
    origin: ForkOrigin | None = None
    replay: Replay | None = None


class ContextInfo(_Payload, frozen=True):
    """A context with its creator, and the type and parent that the creator fixed (C-02)."""

    id: str
    type: str | None = None
    parent: str | None = None
    creator: str | None = None  # None: nothing was sent in it yet
    messages: int | None = None  # in a welcome: how many envelopes it had by then
    title: str | None = None  # what its creator calls it, where that envelope was received (C-20)


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


class PresenceEntry(_Payload, frozen=True):
    """A participant joined or left."""

    event: Literal["join", "leave"]
    participant: ParticipantInfo


class Presence(_Payload, frozen=True):
    """A participant joined or left; or several did, in the order of `entries`."""

    event: Literal["join", "leave"] | None = None
    participant: ParticipantInfo | None = None
    entries: list[PresenceEntry] = []

    def each(self) -> list[PresenceEntry]:
        """Return who joined or left, whichever form the payload has."""
        if self.event is None or self.participant is None:
            return self.entries
        return [PresenceEntry(event=self.event, participant=self.participant)]


class Error(_Payload, frozen=True):
    """A refusal: its code, an explanation, and details that depend on the code."""

    error: str
    message: str
    attempted_kind: str | None = None
    your_capabilities: list[dict[str, Any]] | None = None
    retry_after_seconds: float | None = None
    scope: Literal["participant", "context", "history"] | None = None
    member: str | None = None  # of a query for history


class ContextEvent(_Payload, frozen=True):
    """A context expired, or was revived; several that expired together are in `contexts`."""

    event: Literal["expired", "revived"]
    context: ContextInfo | None = None
    contexts: list[ContextInfo] = []
    messages: int | None = None
    participants: list[str] | None = None
    started: str | None = None  # by the gateway's clock, as `last`
    last: str | None = None


class Loop(_Payload, frozen=True):
    """Participants talk to each other without a person: further chats there are refused."""

    participant: str  # whose chat was refused first
    hops: int
    context: ContextInfo | None = None  # None: the main context


class SetFilter(_Payload, frozen=True):
    """A filter that is requested (`pod/filter`) or in force from here on (`system/filter`)."""

    filter: dict[str, Any]


class Erased(_Payload, frozen=True):
    """An operator erased the content of entries: of a context, of a participant, or of both."""

    entries: int
    context: str | None = None
    participant: str | None = None
    before: float | None = None
    by: str | None = None


class GetHistory(_Payload, frozen=True):
    """A query for entries of the log; see `spec/history.md`."""

    filter: dict[str, Any] | None = None
    context: str | None = None
    text: str | None = None
    after: str | float | None = None
    before: str | float | None = None
    limit: int | None = None
    order: Literal["newest", "oldest"] = "newest"
    cursor: str | None = None


class HistoryEntry(_Payload, frozen=True):
    """An entry of the log. `envelope` is its sender's own text."""

    position: int
    time: float
    envelope: msgspec.Raw
    erased: bool = False


class History(_Payload, frozen=True):
    """One page of history."""

    entries: list[HistoryEntry]
    start: int
    end: int
    indexed_to: int
    epoch: str
    next: str | None = None


class SetReplay(_Payload, frozen=True):
    """A request to a pod that replays a recording; without members it only asks for the state."""

    state: Literal["playing", "paused"] | None = None
    position: int | str | None = None  # or the id of an envelope: what arrives next
    time: float | None = None
    speed: float | None = None


BY_FAMILY: Final[dict[str, type[_Payload]]] = {
    kinds.CHAT: Chat,
    kinds.LIVE_TEXT: LiveText,
    kinds.LOOP: Loop,
    kinds.REFLECTION: Reflection,
    kinds.CONCLUSION: Conclusion,
    kinds.REQUEST: Request,
    kinds.RESPONSE: Response,
    kinds.NOTIFICATION: Notification,
    kinds.PROPOSAL: Proposal,
    kinds.REJECT: Reject,
    kinds.WITHDRAW: Withdraw,
    kinds.CLAIM: ClaimName,
    kinds.RELEASE: Release,
    kinds.WELCOME: Welcome,
    kinds.PRESENCE: Presence,
    kinds.ERROR: Error,
    kinds.CONTEXT: ContextEvent,
    kinds.FILTER_SET: SetFilter,
    kinds.SET_FILTER: SetFilter,
    kinds.GET_HISTORY: GetHistory,
    kinds.HISTORY: History,
    kinds.CARD: CardAnswer,
    kinds.CARD_REQUEST: CardRequest,
    kinds.UPDATE: Update,
    kinds.ERASED: Erased,
    kinds.REPLAY: Replay,
    kinds.SET_REPLAY: SetReplay,
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
    | conclusion | how it failed (C-19), `decision`, `text`; else the payload as JSON |
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
    failure = _failure_text(payload)
    main = (payload.pop("decision", None), payload.pop("text", None))
    parts = [_as_text(part) for part in main if part is not None and part != ""]
    if payload and (complete or not (parts or failure)):
        parts.append(_as_text(payload))
    said = "\n".join(dict.fromkeys(parts))
    return ": ".join(filter(None, (failure, said))) or None


def opts_out(metadata: Mapping[str, Any]) -> bool:
    """Return whether metadata opt out of memory (M-33): any value but true and "on" does."""
    value = metadata.get("memory", True)
    return value is not True and not (isinstance(value, str) and value.strip().casefold() == "on")


def outcome_in(payload: Any) -> Outcome:
    """Return the outcome that a conclusion's payload states (C-19)."""
    stated = payload.get("outcome") if isinstance(payload, dict) else None
    return stated if stated in ("failed", "cancelled") else "concluded"


def _failure_text(payload: dict[str, Any]) -> str:
    """Remove how a context failed from its conclusion, and return it as text."""
    outcome = outcome_in(payload)
    if payload.get("outcome") in ("concluded", outcome):
        del payload["outcome"]
    if outcome == "concluded":
        return ""
    match payload.pop("error", None):
        case None:
            return outcome
        case {"type": str(type), "message": str(message), **rest} if not rest:
            return f"{outcome}: {type}: {message}" if message else f"{outcome}: {type}"
        case other:
            return f"{outcome}: {_as_text(other)}"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
