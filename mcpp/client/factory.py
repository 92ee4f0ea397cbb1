"""Creates envelopes and contexts: the only place that generates ids and reads the clock."""

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import msgspec
import uuid6
from msgspec import UNSET, Raw

from mcpp.errors import DecodeError, EncodeError
from mcpp.kinds import Kind
from mcpp.protocol.codec import decode, encode
from mcpp.protocol.envelope import (
    ENVELOPE_MEMBERS,
    PROTOCOL,
    Attachment,
    Context,
    Envelope,
    with_extra,
)
from mcpp.protocol.value_types import encode_model, to_json

__all__ = ["local_now", "new_context", "new_envelope", "new_id", "now", "timestamp"]


def new_id() -> str:
    """Return a UUIDv7: unguessable and ordered by time."""
    return str(uuid6.uuid7())


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


class _LocalZone(tzinfo):
    """The zone of this machine, with its changes of the clocks; `astimezone` has one offset."""

    def utcoffset(self, time: datetime | None) -> timedelta | None:
        return None if time is None else time.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, time: datetime | None) -> timedelta | None:
        return None

    def tzname(self, time: datetime | None) -> str | None:
        return None if time is None else time.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, time: datetime) -> datetime:
        return time.replace(tzinfo=UTC).astimezone().replace(tzinfo=self)


def local_now() -> datetime:
    """Return the current time in the zone of this machine, for `mcpp.times.parse_time`."""
    return datetime.now(_LocalZone())


def timestamp(time: datetime) -> str:
    """Return a time as an envelope's `ts`, in UTC with microseconds.

    Raises EncodeError for a time without a zone or outside the years 1 to 9999.
    """
    if getattr(time, "tzinfo", None) is None:
        raise EncodeError("$.ts", "must be a string or a datetime with a time zone")
    try:
        universal = time.astimezone(UTC)
    except OverflowError:
        raise EncodeError("$.ts", "is outside the years 1 to 9999") from None
    return universal.isoformat(timespec="microseconds").replace("+00:00", "Z")


def new_context(
    type: str | None = None,
    *,
    id: str | None = None,
    parent: "Context | str | None" = None,
    metadata: Mapping[str, Any] | None = None,
    new_id: Callable[[], str] = new_id,
) -> Context:
    """Return a context with a new id, or with the given one.

    Args:
        type: such as `reasoning`.
        id: of an existing context.
        parent: the context above it, or its id.
        metadata: a mapping that JSON can represent.
        new_id: generates the id.

    Raises EncodeError for metadata that is not a mapping or that JSON cannot represent.
    """
    if metadata is not None and not isinstance(metadata, Mapping):
        raise EncodeError("$.context.metadata", "must be a mapping")
    return Context(
        id=new_id() if id is None else id,
        type=type,
        parent=parent.id if isinstance(parent, Context) else parent,
        raw_metadata=UNSET if metadata is None else to_raw(dict(metadata), "$.context.metadata"),
    )


def new_envelope(
    kind: str | Kind,
    payload: Any = None,
    *,
    sender: str,
    to: str | Iterable[str] | None = None,
    correlation_id: str | None = None,
    context: Context | str | None = None,
    attachments: Iterable[Attachment] = (),
    id: str | None = None,
    ts: datetime | str | None = None,
    extra: Mapping[str, Any] | None = None,
    clock: Callable[[], datetime] = now,
    new_id: Callable[[], str] = new_id,
) -> Envelope:
    """Return a valid envelope with id and time filled in.

    Args:
        kind: such as `chat`.
        payload: anything that msgspec can encode as JSON: a struct of `mcpp.payloads`, a dataclass,
            a pydantic model, plain values.
        sender: the participant that sends it.
        to: the addressee or several; None addresses the whole pod.
        correlation_id: the id of the envelope that this one answers.
        context: a context, or the id of one that has been described before.
        attachments: the content that it names; its sender needs access to it.
        id: defaults to a new one.
        ts: defaults to the current time.
        extra: members that the protocol does not define.
        clock: returns the current time.
        new_id: generates the id.

    Raises EncodeError with the path of the member that breaks a rule.
    """
    if not isinstance(to, Iterable | None):
        raise EncodeError("$.to", "must be a name or several")
    if not isinstance(context, Context | str | None):
        raise EncodeError("$.context", "must be a Context or a context's id")
    if not isinstance(extra, Mapping | None):
        raise EncodeError("$", "extra must be a mapping")
    time = clock() if ts is None else ts
    raw = {name: to_raw(value, f"$.{name}") for name, value in (extra or {}).items()}
    for name in ENVELOPE_MEMBERS.intersection(raw):
        raise EncodeError(f"$.{name}", "is defined by the protocol and cannot be an extra member")
    named = [_check_attachment(each) for each in attachments]
    draft = Envelope(
        protocol=PROTOCOL,
        id=new_id() if id is None else id,
        ts=time if isinstance(time, str) else timestamp(time),
        sender=sender,
        to=None if to is None else (to,) if isinstance(to, str) else tuple(to),
        kind=str(kind),
        correlation_id=correlation_id,
        context=Context(id=context) if isinstance(context, str) else context,
        raw_attachments=Raw(msgspec.json.encode(named)) if named else UNSET,
        raw_payload=to_raw(payload, "$.payload"),
    )
    try:
        return decode(encode(with_extra(draft, raw)))
    except DecodeError as error:
        raise EncodeError(error.path, error.reason) from None
    except UnicodeEncodeError:
        raise EncodeError("$", "has a lone surrogate") from None


def _check_attachment(value: object) -> Attachment:
    if not isinstance(value, Attachment):
        raise EncodeError("$.attachments", "must be Attachments, as `pod.attach` returns them")
    return value


def to_raw(value: Any, path: str) -> Raw:
    """Return a value as JSON. Raises EncodeError."""
    if isinstance(value, Raw):
        return value  # of another envelope
    try:
        text = msgspec.json.encode(value, enc_hook=encode_model)
    except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
        raise EncodeError(path, f"cannot be encoded as JSON: {error}") from None
    # msgspec encodes NaN and the infinities as null, which the receiver would take for None.
    try:
        if b"null" in text and _has_non_finite_float(to_json(value)):
            raise EncodeError(path, "contains NaN or an infinity, which JSON cannot represent")
    except RecursionError:
        raise EncodeError(path, "is nested too deeply") from None
    return Raw(text)


def _has_non_finite_float(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_non_finite_float, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_non_finite_float, value))
    return isinstance(value, float) and not math.isfinite(value)
