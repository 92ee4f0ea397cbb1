"""New envelopes and contexts: the one place where ids and times are taken from the world."""

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import uuid6
from msgspec import UNSET, Raw

from mcpp.errors import DecodeError
from mcpp.kinds import Kind
from mcpp.protocol.codec import decode, encode
from mcpp.protocol.envelope import ENVELOPE_MEMBERS, PROTOCOL, Context, Envelope, with_extra


def new_id() -> str:
    """Return a UUIDv7: unguessable, and in the order of time."""
    return str(uuid6.uuid7())


def now() -> datetime:
    """Return the present time in UTC."""
    return datetime.now(UTC)


def timestamp(time: datetime) -> str:
    """Return a time as an envelope's `ts`, in UTC with microseconds.

    Raises DecodeError for a time that says nothing to others.
    """
    if getattr(time, "tzinfo", None) is None:
        raise DecodeError("$.ts", "must be a text or a datetime with a zone")
    try:
        universal = time.astimezone(UTC)
    except OverflowError:
        raise DecodeError("$.ts", "lies outside of the years 1 to 9999") from None
    return universal.isoformat(timespec="microseconds").replace("+00:00", "Z")


def new_context(
    type: str | None = None,
    *,
    id: str | None = None,
    parent: "Context | str | None" = None,
    metadata: Mapping[str, Any] | None = None,
    new_id: Callable[[], str] = new_id,
) -> Context:
    """Return a context with an id of its own, or with the one given.

    Raises DecodeError for metadata that is not an object, or that JSON cannot carry.
    """
    if metadata is not None and not isinstance(metadata, Mapping):
        raise DecodeError("$.context.metadata", "must be a mapping")
    return Context(
        id=new_id() if id is None else id,
        type=type,
        parent=parent.id if isinstance(parent, Context) else parent,
        raw_metadata=UNSET if metadata is None else _raw(dict(metadata), "$.context.metadata"),
    )


def new_envelope(
    kind: str | Kind,
    payload: Any = None,
    *,
    sender: str,
    to: Iterable[str] | None = None,
    correlation_id: str | None = None,
    context: Context | str | None = None,
    id: str | None = None,
    ts: datetime | str | None = None,
    extra: Mapping[str, Any] | None = None,
    clock: Callable[[], datetime] = now,
    new_id: Callable[[], str] = new_id,
) -> Envelope:
    """Return an envelope that obeys every rule of the protocol, id and time filled in.

    `payload` is anything that msgspec can write as JSON: a struct of `mcpp.payloads`, a dataclass,
    plain values. `context` may be just the id of a context that others have described.

    Raises DecodeError with the path of the member that breaks a rule.
    """
    if isinstance(to, str) or not isinstance(to, Iterable | None):
        raise DecodeError("$.to", f"must be several names, such as [{str(to)!r}]")
    if not isinstance(context, Context | str | None):
        raise DecodeError("$.context", "must be what `new_context` returns, or a context's id")
    if not isinstance(extra, Mapping | None):
        raise DecodeError("$", "extra members come in a mapping")
    time = clock() if ts is None else ts
    raw = {name: _raw(value, f"$.{name}") for name, value in (extra or {}).items()}
    for name in ENVELOPE_MEMBERS.intersection(raw):
        raise DecodeError(f"$.{name}", "is the protocol's own member and cannot be an extra one")
    draft = Envelope(
        protocol=PROTOCOL,
        id=new_id() if id is None else id,
        ts=time if isinstance(time, str) else timestamp(time),
        sender=sender,
        to=None if to is None else tuple(to),
        kind=str(kind),
        correlation_id=correlation_id,
        context=Context(id=context) if isinstance(context, str) else context,
        raw_payload=_raw(payload, "$.payload"),
    )
    try:
        return decode(encode(with_extra(draft, raw)))
    except UnicodeEncodeError:
        raise DecodeError("$", "has a lone surrogate") from None


def _raw(value: Any, path: str) -> Raw:
    try:
        text = msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise DecodeError(path, f"cannot be written as JSON: {error}") from None
    # msgspec writes NaN and the infinities as null, which would be another value on the far side.
    try:
        if b"null" in text and _has_odd_float(msgspec.to_builtins(value)):
            raise DecodeError(path, "holds NaN or an infinity, which JSON cannot carry")
    except RecursionError:
        raise DecodeError(path, "nests too deeply") from None
    return Raw(text)


def _has_odd_float(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_odd_float, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_odd_float, value))
    return isinstance(value, float) and not math.isfinite(value)
